{{/* Name of every object. */}}
{{- define "inference-deployment.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/* What the Deployment and the Service select by; it can never change. */}}
{{- define "inference-deployment.selectorLabels" -}}
app.kubernetes.io/name: inference-deployment
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/*
Labels of the pods. The hash of the specification and the chart's version are not among them: the
first changes when only the number of replicas does, and neither may restart a replica by itself.
*/}}
{{- define "inference-deployment.podLabels" -}}
{{ include "inference-deployment.selectorLabels" . }}
app.kubernetes.io/component: engine
app.kubernetes.io/part-of: exo-inference
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ include "inference-deployment.version" . | quote }}
inference.exo.dev/deployment: {{ default .Release.Name .Values.deployment.name | quote }}
inference.exo.dev/engine: {{ .Values.engine.name | quote }}
inference.exo.dev/gpu-type: {{ .Values.gpu.type | quote }}
{{- with .Values.deployment.uid }}
inference.exo.dev/deployment-uid: {{ . | quote }}
{{- end }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of all other objects. */}}
{{- define "inference-deployment.labels" -}}
{{ include "inference-deployment.podLabels" . }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.deployment.specHash }}
inference.exo.dev/spec-hash: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "inference-deployment.tag" -}}
{{- coalesce .Values.engine.image.tag .Values.engine.version .Chart.AppVersion -}}
{{- end -}}

{{/* A label's value: at most 63 characters. */}}
{{- define "inference-deployment.version" -}}
{{- default (include "inference-deployment.tag" .) .Values.engine.version | trunc 63 -}}
{{- end -}}

{{/* Image reference: the digest wins, as what it names never changes. */}}
{{- define "inference-deployment.image" -}}
{{- $image := .Values.engine.image -}}
{{- $name := eq .Values.engine.name "exo" | ternary "exo-engine" (printf "exo-%s" .Values.engine.name) -}}
{{- $repository := default (printf "%s/%s" $image.registry $name) $image.repository -}}
{{- $tag := include "inference-deployment.tag" . -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else if eq $tag "latest" -}}
{{- fail "engine.image.tag is \"latest\", which names another image tomorrow: give a version, or a digest in engine.image.digest" -}}
{{- else -}}
{{- printf "%s:%s" $repository $tag -}}
{{- end -}}
{{- end -}}

{{/* Shared memory in MiB. The values go through int64 because Helm reads numbers as floats. */}}
{{- define "inference-deployment.shmMebibytes" -}}
{{- mul (int64 .Values.shm.perGpuMebibytes) (max 1 (int64 .Values.gpu.count)) -}}
{{- end -}}

{{/* Memory limit in MiB where the user gave none; values.yaml has the formula. */}}
{{- define "inference-deployment.memoryMebibytes" -}}
{{- $shm := include "inference-deployment.shmMebibytes" . | int64 -}}
{{- $engine := mul (int64 .Values.memory.perGpuMebibytes) (int64 .Values.gpu.count) -}}
{{- if eq (int64 .Values.gpu.count) 0 -}}
{{- $engine = div (add (mul 2 (int64 .Values.model.sizeBytes)) 1048575) 1048576 -}}
{{- end -}}
{{- add (int64 .Values.memory.baseMebibytes) $engine $shm -}}
{{- end -}}

{{/* Seconds that a start may take, rounded up. */}}
{{- define "inference-deployment.startSeconds" -}}
{{- $rate := int64 .Values.startup.bytesPerSecond -}}
{{- $reading := div (add (int64 .Values.model.sizeBytes) $rate -1) $rate -}}
{{- add (int64 .Values.startup.baseSeconds) $reading -}}
{{- end -}}

{{- define "inference-deployment.startFailureThreshold" -}}
{{- $seconds := include "inference-deployment.startSeconds" . | int64 -}}
{{- $period := int64 .Values.startup.periodSeconds -}}
{{- div (add $seconds $period -1) $period -}}
{{- end -}}

{{/* Name of the template of device claims. It cannot be changed, so a change makes another. */}}
{{- define "inference-deployment.claimTemplate" -}}
{{- $what := dict "claims" .Values.resourceClaims "count" (int64 .Values.gpu.count) -}}
{{- printf "%s-%s" (include "inference-deployment.fullname" .) ($what | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{/* apiVersion, kind and name of what an autoscaler scales. */}}
{{- define "inference-deployment.scaleTarget" -}}
{{- if gt (int64 .Values.multiNode.size) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "inference-deployment.fullname" . }}
{{- end -}}

{{/* What no schema can say, each with a sentence. Rendered as nothing. */}}
{{- define "inference-deployment.validate" -}}
{{- $model := .Values.model -}}
{{- if not $model.source -}}
{{- fail "model.source is empty: give the source of the InferenceModel, for example meta-llama/Llama-3.1-8B-Instruct" -}}
{{- end -}}
{{- if and $model.claimName $model.image.reference -}}
{{- fail "model.claimName and model.image.reference are both set: the model comes from a volume claim or from an OCI image, so leave one empty" -}}
{{- end -}}
{{- if not (or $model.claimName $model.image.reference) -}}
{{- fail "the model's files are nowhere: set model.claimName to the claim that the chart inference-model made, or model.image.reference to an OCI image" -}}
{{- end -}}
{{- with $model.image.reference -}}
{{- $name := splitList "/" . | last -}}
{{- if or (hasSuffix ":latest" .) (not (or (contains "@sha256:" .) (contains ":" $name))) -}}
{{- fail (printf "model.image.reference %q names no version: end it with :VERSION or @sha256:DIGEST" .) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int64 .Values.multiNode.size) 1) (not (has .Values.engine.name (list "vllm" "sglang"))) -}}
{{- fail (printf "multiNode.size is %d, but engine %q cannot span nodes: use vllm or sglang, or multiNode.size 1" (int64 .Values.multiNode.size) .Values.engine.name) -}}
{{- end -}}
{{- if and (gt (int64 .Values.multiNode.size) 1) (eq (int64 .Values.gpu.count) 0) -}}
{{- fail "multiNode.size is above 1, but gpu.count is 0: only models on GPUs span nodes" -}}
{{- end -}}
{{- if and .Values.resourceClaims.enabled (eq (int64 .Values.gpu.count) 0) -}}
{{- fail "resourceClaims.enabled needs gpu.count to be at least 1" -}}
{{- end -}}
{{- if and (eq (int64 .Values.rollout.maxSurge) 0) (eq (int64 .Values.rollout.maxUnavailable) 0) -}}
{{- fail "rollout.maxSurge and rollout.maxUnavailable are both 0, so no replica could ever be replaced: set one of them to 1" -}}
{{- end -}}
{{- include "inference-deployment.validateAutoscaling" . -}}
{{- end -}}

{{- define "inference-deployment.validateAutoscaling" -}}
{{- $scaling := .Values.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if gt (int64 $scaling.minReplicas) (int64 $scaling.maxReplicas) -}}
{{- fail (printf "autoscaling.minReplicas %d is above autoscaling.maxReplicas %d" (int64 $scaling.minReplicas) (int64 $scaling.maxReplicas)) -}}
{{- end -}}
{{- if eq $scaling.type "hpa" -}}
{{- if eq (int64 $scaling.minReplicas) 0 -}}
{{- fail "autoscaling.minReplicas is 0, which a HorizontalPodAutoscaler cannot do: set it to 1, or use autoscaling.type keda" -}}
{{- end -}}
{{- if not (or $scaling.hpaMetrics (has .Values.engine.name (list "exo" "vllm"))) -}}
{{- fail (printf "autoscaling.type hpa asks for vllm:num_requests_running, which engine %q does not publish: name its own metrics in autoscaling.hpaMetrics, or use autoscaling.type keda" .Values.engine.name) -}}
{{- end -}}
{{- else -}}
{{- if not $scaling.prometheus.serverAddress -}}
{{- fail "autoscaling.type keda needs autoscaling.prometheus.serverAddress, for example http://prometheus-operated.monitoring:9090" -}}
{{- end -}}
{{- if not (or $scaling.prometheus.query .Values.deployment.uid) -}}
{{- fail "autoscaling.type keda asks for the requests of deployment.uid, which is empty: set it, or give autoscaling.prometheus.query" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
