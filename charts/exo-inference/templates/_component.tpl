{{/*
Deployment of controller or gateway. Takes a dict: root, component. Passes the Pod Security Standard
`restricted`.
*/}}
{{- define "exo-inference.deployment" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- $values := index $root.Values $component -}}
{{- $isController := eq $component "controller" -}}
{{- $grace := $isController | ternary 30 (int64 $root.Values.gateway.drainSeconds) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "exo-inference.fullname" $root }}-{{ $component }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
spec:
  replicas: {{ int64 $values.replicas }}
  revisionHistoryLimit: 3
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  selector:
    matchLabels:
      {{- include "exo-inference.selectorLabels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "exo-inference.labels" . | nindent 8 }}
      {{- if or $isController $values.podAnnotations }}
      annotations:
        {{- if $isController }}
        # The file is read at the start, so a change of it starts the controller again.
        checksum/platform: {{ print (include "exo-inference.platform" $root) $root.Values.gpuFile | sha256sum }}
        {{- end }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "exo-inference.serviceAccountName" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "exo-inference.selectorLabels" $ | nindent 14 }}
          matchLabelKeys: [pod-template-hash]
        {{- end }}
      terminationGracePeriodSeconds: {{ add 5 $grace 10 }}
      securityContext:
        runAsNonRoot: true
        {{- with $root.Values.podSecurity.runAsUser }}
        runAsUser: {{ int64 . }}
        {{- end }}
        {{- with $root.Values.podSecurity.runAsGroup }}
        runAsGroup: {{ int64 . }}
        {{- end }}
        seccompProfile:
          type: RuntimeDefault
      containers:
        {{- range $process := until (include "exo-inference.processes" . | int) }}
        {{- include "exo-inference.container" (dict "root" $root "component" $component "process" $process) | nindent 8 }}
        {{- end }}
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 1Gi
        {{- if $isController }}
        - name: platform
          configMap:
            name: {{ include "exo-inference.fullname" $root }}-platform
        {{- end }}
{{- end -}}

{{/*
Container with one process of controller or gateway. Takes a dict: root, component, process. The gateways of
a pod share one port, which the first container names for all.
*/}}
{{- define "exo-inference.container" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- $isController := eq $component "controller" -}}
{{- $metrics := include "exo-inference.metricsPort" .process -}}
- name: {{ $component }}{{ with .process }}-{{ . }}{{ end }}
  image: {{ include "exo-inference.image" $root | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [python, -m, exo_inference.{{ $component }}]
  args:
    {{- include "exo-inference.args" . | nindent 4 }}
  env:
    {{- include "exo-inference.env" . | nindent 4 }}
  ports:
    {{- if not .process }}
    - name: http
      containerPort: {{ $isController | ternary 8080 8081 }}
    {{- end }}
    - name: {{ $metrics }}
      containerPort: {{ add 9090 .process }}
  startupProbe:
    httpGet:
      path: /healthz
      port: {{ $metrics }}
    periodSeconds: 1
    failureThreshold: 60
  readinessProbe:
    httpGet:
      path: /readyz
      port: {{ $metrics }}
    periodSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet:
      path: /healthz
      port: {{ $metrics }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  lifecycle:
    preStop:
      # The time in which proxies and clients learn that this pod is leaving.
      sleep:
        seconds: 5
  resources:
    {{- toYaml (index $root.Values $component).resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- if $isController }}
    - name: platform
      mountPath: /etc/exo
      readOnly: true
    {{- end }}
{{- end -}}

{{/* Service, account, budget and ways in of controller or gateway. Takes a dict: root, component. */}}
{{- define "exo-inference.service" -}}
{{- $values := index .root.Values .component -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
  {{- with $values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $values.service.type }}
  selector:
    {{- include "exo-inference.selectorLabels" . | nindent 4 }}
  ports:
    - name: http
      port: {{ int64 $values.service.port }}
      targetPort: http
      protocol: TCP
{{- end -}}

{{/* Apart from the Service that clients use: a LoadBalancer must not show metrics to the world. */}}
{{- define "exo-inference.metricsService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}-metrics
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
    inference.exo.dev/metrics: "true"
spec:
  clusterIP: None
  # A controller or gateway that is not ready is one that needs watching.
  publishNotReadyAddresses: true
  selector:
    {{- include "exo-inference.selectorLabels" . | nindent 4 }}
  ports:
    {{- range $process := until (include "exo-inference.processes" . | int) }}
    {{- $metrics := include "exo-inference.metricsPort" $process }}
    - name: {{ $metrics }}
      port: {{ add 9090 $process }}
      targetPort: {{ $metrics }}
      protocol: TCP
    {{- end }}
{{- end -}}

{{- define "exo-inference.serviceAccount" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "exo-inference.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{- define "exo-inference.podDisruptionBudget" -}}
{{- $values := index .root.Values .component -}}
{{- if and $values.podDisruptionBudget.enabled (gt (int64 $values.replicas) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ int64 $values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "exo-inference.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{- define "exo-inference.ingress" -}}
{{- $ingress := (index .root.Values .component).ingress -}}
{{- $name := printf "%s-%s" (include "exo-inference.fullname" .root) .component -}}
{{- if $ingress.enabled -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
  {{- with $ingress.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with $ingress.tlsSecretName }}
  tls:
    - secretName: {{ . }}
      hosts:
        {{- toYaml $ingress.hosts | nindent 8 }}
  {{- end }}
  rules:
    {{- range $ingress.hosts }}
    - host: {{ . | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ $name }}
                port:
                  name: http
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "exo-inference.httpRoute" -}}
{{- $values := index .root.Values .component -}}
{{- if $values.httpRoute.enabled -}}
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
spec:
  parentRefs:
    {{- toYaml $values.httpRoute.parentRefs | nindent 4 }}
  {{- with $values.httpRoute.hostnames }}
  hostnames:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    - matches:
        - path:
            type: PathPrefix
            value: /
      {{- if eq .component "gateway" }}
      # A long answer streams for minutes; the engines have limits of their own.
      timeouts:
        request: 0s
      {{- end }}
      backendRefs:
        - name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
          port: {{ int64 $values.service.port }}
{{- end -}}
{{- end -}}

{{- define "exo-inference.networkPolicy" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- if $policy.enabled -}}
# Ingress alone: where the API server and the Hub are is not for a chart to know.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "exo-inference.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - port: http
          protocol: TCP
      {{- with eq .component "controller" | ternary $policy.controllerFrom $policy.gatewayFrom }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    - ports:
        {{- range $process := until (include "exo-inference.processes" . | int) }}
        - port: {{ include "exo-inference.metricsPort" $process }}
          protocol: TCP
        {{- end }}
      from:
        {{- if $policy.metricsFrom }}
        {{- toYaml $policy.metricsFrom | nindent 8 }}
        {{- else }}
        - podSelector: {}
        {{- end }}
{{- end -}}
{{- end -}}

{{- define "exo-inference.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
  namespace: {{ include "exo-inference.inferenceNamespace" .root }}
  labels:
    {{- include "exo-inference.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "exo-inference.fullname" .root }}-{{ .component }}
subjects:
  - kind: ServiceAccount
    name: {{ include "exo-inference.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
