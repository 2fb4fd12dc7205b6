{{/*
Pod template. Takes a dict: root, and role: "engine" for a replica of one pod, "leader" and "worker"
for the pods of one that spans nodes. Passes the Pod Security Standard `restricted`.
*/}}
{{- define "inference-deployment.podTemplate" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "inference-deployment.podLabels" $root | nindent 4 }}
    {{- if ne $role "engine" }}
    inference.exo.dev/node-role: {{ $role }}
    {{- end }}
  annotations:
    # The flags travel with the pod and not in an object of their own: during a rollout, and after a
    # rollback, a replica that starts again gets the flags of its own version.
    inference.exo.dev/engine-parameters: {{ $values.engine.parameters | toJson | quote }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $values.topologySpread.enabled (ne $role "worker") }}
  topologySpreadConstraints:
    {{- range $values.topologySpread.topologyKeys }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "inference-deployment.selectorLabels" $root | nindent 10 }}
          {{- if ne $role "engine" }}
          inference.exo.dev/node-role: {{ $role }}
          {{- end }}
      {{- if eq $role "engine" }}
      # The replicas of the version before do not count while they are replaced.
      matchLabelKeys: [pod-template-hash]
      {{- end }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add (int64 $values.drain.preStopSeconds) (int64 $values.drain.timeoutSeconds) 30 }}
  securityContext:
    runAsNonRoot: true
    {{- with $values.podSecurity.runAsUser }}
    runAsUser: {{ int64 . }}
    {{- end }}
    {{- with $values.podSecurity.runAsGroup }}
    runAsGroup: {{ int64 . }}
    {{- end }}
    {{- with $values.podSecurity.fsGroup }}
    fsGroup: {{ int64 . }}
    {{- end }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if $values.resourceClaims.enabled }}
  resourceClaims:
    - name: gpus
      resourceClaimTemplateName: {{ include "inference-deployment.claimTemplate" $root }}
  {{- end }}
  containers:
    - name: engine
      image: {{ include "inference-deployment.image" $root | quote }}
      imagePullPolicy: {{ $values.engine.image.pullPolicy }}
      env:
        {{- include "inference-deployment.env" . | nindent 8 }}
      ports:
        {{- if ne $role "worker" }}
        - name: http
          containerPort: 8000
        {{- end }}
        - name: probes
          containerPort: 8001
      {{- include "inference-deployment.probes" $root | nindent 6 }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ int64 $values.drain.preStopSeconds }}
      resources:
        {{- include "inference-deployment.resources" $root | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      # What the engine says last is the reason that users are shown.
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - name: model
          mountPath: /model
          readOnly: true
          {{- with $values.model.subPath }}
          subPath: {{ . | quote }}
          {{- end }}
        - name: parameters
          mountPath: /etc/exo
          readOnly: true
        - name: shm
          mountPath: /dev/shm
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: model
      {{- if $values.model.claimName }}
      persistentVolumeClaim:
        claimName: {{ $values.model.claimName }}
        readOnly: true
      {{- else }}
      image:
        reference: {{ $values.model.image.reference | quote }}
        pullPolicy: {{ $values.model.image.pullPolicy }}
      {{- end }}
    - name: parameters
      downwardAPI:
        items:
          - path: parameters.json
            fieldRef:
              fieldPath: metadata.annotations['inference.exo.dev/engine-parameters']
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ include "inference-deployment.shmMebibytes" $root }}Mi
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.scratch.sizeLimit }}
{{- end -}}

{{/* Environment, as engine-images/README.md has it. */}}
{{- define "inference-deployment.env" -}}
{{- $values := .root.Values -}}
- name: EXO_SERVED_MODEL_NAME
  value: {{ default $values.model.source $values.engine.servedModelName | quote }}
- name: EXO_DEVICE
  value: {{ eq (int64 $values.gpu.count) 0 | ternary "cpu" "cuda" }}
- name: EXO_TENSOR_PARALLEL_SIZE
  value: {{ max 1 (int64 $values.gpu.count) | quote }}
- name: EXO_DRAIN_SECONDS
  value: {{ int64 $values.drain.timeoutSeconds | quote }}
{{- with int64 $values.liveness.stallSeconds }}
- name: EXO_STALL_SECONDS
  value: {{ . | quote }}
{{- end }}
{{- if ne .role "engine" }}
- name: EXO_PIPELINE_PARALLEL_SIZE
  value: {{ int64 $values.multiNode.size | quote }}
- name: EXO_NODE_COUNT
  value: {{ int64 $values.multiNode.size | quote }}
- name: EXO_NODE_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']
# The LeaderWorkerSet's controller puts LWS_LEADER_ADDRESS in front of all others.
- name: EXO_LEADER_ADDRESS
  value: $(LWS_LEADER_ADDRESS)
{{- end }}
{{- with $values.engine.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inference-deployment.probes" -}}
{{- $values := .Values -}}
# {{ include "inference-deployment.startSeconds" . }} s: {{ int64 $values.startup.baseSeconds }} s and the time to read {{ int64 $values.model.sizeBytes }} bytes.
startupProbe:
  httpGet:
    path: {{ $values.engine.readinessPath }}
    port: probes
  periodSeconds: {{ int64 $values.startup.periodSeconds }}
  timeoutSeconds: {{ int64 $values.readiness.timeoutSeconds }}
  failureThreshold: {{ include "inference-deployment.startFailureThreshold" . }}
readinessProbe:
  httpGet:
    path: {{ $values.engine.readinessPath }}
    port: probes
  periodSeconds: {{ int64 $values.readiness.periodSeconds }}
  timeoutSeconds: {{ int64 $values.readiness.timeoutSeconds }}
  failureThreshold: {{ int64 $values.readiness.failureThreshold }}
livenessProbe:
  httpGet:
    path: {{ $values.engine.livenessPath }}
    port: probes
  periodSeconds: {{ int64 $values.liveness.periodSeconds }}
  timeoutSeconds: {{ int64 $values.liveness.timeoutSeconds }}
  failureThreshold: {{ int64 $values.liveness.failureThreshold }}
{{- end -}}

{{/* The user's resources, completed: memory that is derived, and the GPUs. */}}
{{- define "inference-deployment.resources" -}}
{{- $memory := printf "%sMi" (include "inference-deployment.memoryMebibytes" .) -}}
{{- $limits := mergeOverwrite (dict "memory" $memory) (deepCopy .Values.resources.limits) -}}
{{- $requests := mergeOverwrite (dict "memory" $limits.memory) (deepCopy .Values.resources.requests) -}}
{{- $resources := dict -}}
{{- if .Values.resourceClaims.enabled -}}
{{- $_ := set $resources "claims" (list (dict "name" "gpus")) -}}
{{- else if gt (int64 .Values.gpu.count) 0 -}}
{{- $_ := set $limits .Values.gpu.resourceName (int64 .Values.gpu.count) -}}
{{- end -}}
{{- $_ := set $resources "limits" $limits -}}
{{- $_ := set $resources "requests" $requests -}}
{{- toYaml $resources -}}
{{- end -}}
