"""Flags that vLLM has and this engine refuses, each with the reason.

So that a parameter copied from a vLLM deployment is answered with why, rather than with "unknown".
Names were read from the argument parsers of vLLM 0.12.0 to 0.33.0. Used by `exo_engine.arguments`
only; nothing here changes what the engine does.
"""

from __future__ import annotations

from typing import Final

_WORDS: Final[dict[str, str]] = {
    "the KV cache has one form in this version": """
        calculate-kv-scales enable-mamba-shared-prefix-checkpoint kv-cache-dtype-skip-layers
        kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill mamba-block-size
        mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype prefix-cache-retention-interval
        prefix-caching-hash-algo prefix-match-unit replayssm-buffer-len swa-bounded-replay
        use-replayssm
    """,
    "graphs are captured for batch sizes that follow from --max-num-seqs": """
        cuda-graph-sizes cudagraph-capture-sizes max-cudagraph-capture-size
    """,
    "kernels are chosen by the device": """
        enable-bf16x3-router-gemm enable-flashinfer-autotune ir-op-priority linear-backend
        moe-backend monokernel sparse-indexer-topk-backend
    """,
    "adapters are not supported yet": """
        default-mm-loras enable-lora enable-mixed-moe-lora-format enable-moe-shared-loras
        enable-tower-connector-lora fully-sharded-loras lora-dtype lora-modules lora-target-modules
        max-cpu-loras max-lora-cls-labels max-lora-rank max-loras specialize-active-lora
    """,
    "weights are read from the model directory, *.safetensors only": """
        download-dir ignore-patterns model-loader-extra-config pt-load-map-location
        safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
        use-tqdm-on-load
    """,
    "traces go where the variable OTEL_EXPORTER_OTLP_ENDPOINT says": """
        otlp-traces-endpoint
    """,
    "the log format follows from where stderr goes": """
        log-config-file logging-config
    """,
    "state-space models are not supported": """
        enable-mamba-cache-stochastic-rounding mamba-backend mamba-cache-philox-rounds
        mamba-ssu-algorithm
    """,
    "the model is taken as its directory describes it": """
        allow-deprecated-quantization allowed-local-media-path allowed-media-domains code-revision
        config-format disable-cascade-attn disable-sliding-window enable-cumem-allocator
        enable-nccl-comm-suspend enable-prompt-embeds enable-return-routed-experts enable-sleep-mode
        enable-trace-replay hf-config-path hf-overrides io-processor-plugin logits-processor-pattern
        logits-processors logprobs-mode model-class-overrides model-impl override-attention-dtype
        quantization-config renderer-num-workers return-sampling-mask
        skip-tokenizer-init sleep-mode-backend sleep-mode-offload-cudagraph
        sleep-preserve-parameter-names task tokenizer-revision use-fp64-gumbel
    """,
    "models with pictures, sound or video are not supported": """
        disable-mm-preprocessor-cache enable-mm-embeds interleave-mm-strings language-model-only
        limit-mm-per-prompt media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend
        mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
        mm-encoder-fp8-scale-save-path mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm
        mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device
        mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling
        video-pruning-method video-pruning-rate
    """,
    "only the metrics of /metrics are recorded": """
        collect-detailed-traces cudagraph-metrics custom-histogram-buckets
        enable-layerwise-nvtx-tracing enable-logging-iteration-details enable-mfu-metrics
        jit-monitor-mode jit-monitor-verbose kv-cache-metrics kv-cache-metrics-sample
        per-request-spec-decode-metrics show-hidden-metrics-for-version
    """,
    "weights are not offloaded in this version": """
        cpu-offload-gb cpu-offload-params offload-backend offload-group-size offload-num-in-group
        offload-params offload-prefetch-step
    """,
    "a model runs on one device in this version; use more replicas instead": """
        all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
        data-parallel-address data-parallel-backend data-parallel-external-lb
        data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-rank
        data-parallel-rpc-port data-parallel-size-local data-parallel-start-rank
        dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
        dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size device-ids
        disable-custom-all-reduce disable-nccl-for-dp-synchronization
        distributed-timeout-seconds dp-sync-interval elastic-ep-max-dp-size
        enable-batch-sharded-sampling enable-dbo enable-elastic-ep enable-ep-weight-filter
        enable-eplb enable-expert-parallel enable-fault-tolerance enable-hc-sp
        enable-multimodal-encoder-data-parallel enable-shm-tensor-arena eplb-config
        expert-placement-strategy fault-tolerance-config master-addr master-port
        max-parallel-loading-workers nnodes node-rank numa-bind numa-bind-cpus numa-bind-nodes
        prefill-context-parallel-size ray-workers-use-nsight ubatch-size worker-cls
        worker-extension-cls
    """,
    "the scheduler has no such setting": """
        disable-chunked-mm-input disable-hybrid-kv-cache-manager
        long-prefill-token-threshold-adaptive
        max-num-active-seqs max-num-queued-tokens max-num-scheduled-tokens
        prefill-schedule-interval scheduler-cls scheduler-reserve-full-isl stream-interval watermark
    """,
    "parsers of answers are those of this engine": """
        reasoning-parser-plugin tool-parser-plugin
    """,
    "this engine has no such part": """
        additional-config aggregate-engine-logging attention-config aux-output-config
        compilation-config diffusion-config ec-manager-config ec-transfer-config engram-config
        fail-on-environ-validation gdn-prefill-backend kda-decode-backend kda-prefill-backend
        kernel-config kv-events-config kv-transfer-config optimization-level performance-mode
        profiler-config reasoning-config structured-outputs-config watchdog-config watermark-config
        weight-transfer-config
    """,
    "speculative decoding is not supported yet": """
        spec-method spec-model spec-tokens speculative-config
    """,
    "the HTTP side has no such setting": """
        allow-credentials allowed-headers allowed-methods allowed-origins api-server-count config
        disable-fastapi-docs enable-log-outputs enable-request-id-headers
        exclude-tools-when-tool-choice-none grpc h11-max-header-count h11-max-incomplete-event-size
        headless log-error-stack max-log-len middleware root-path tokens-only tool-server
        trust-request-chat-template
    """,
    "TLS ends at the gateway": """
        enable-ssl-refresh ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
    """,
    "code from a model directory is never run": """
        trust-remote-code
    """,
    "the model is a local directory; choose the revision when the model is downloaded": """
        revision
    """,
    "preempted requests are computed again rather than swapped out": """
        swap-space
    """,
    "the engine downloads nothing": """
        hf-token
    """,
}

REFUSED: Final[dict[str, str]] = {
    name: reason for reason, names in _WORDS.items() for name in names.split()
}
"""Flag name without dashes to the reason, in words that fit after a colon."""
