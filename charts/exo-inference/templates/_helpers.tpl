{{/* Name in front of every object's name. */}}
{{- define "exo-inference.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Namespace of models, deployments and engines. */}}
{{- define "exo-inference.inferenceNamespace" -}}
{{- default .Release.Namespace .Values.inferenceNamespace -}}
{{- end -}}

{{/* What a component is selected by. Takes a dict: root, component. */}}
{{- define "exo-inference.selectorLabels" -}}
app.kubernetes.io/name: exo-inference
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object. Takes a dict: root, component. */}}
{{- define "exo-inference.labels" -}}
{{ include "exo-inference.selectorLabels" . }}
app.kubernetes.io/part-of: exo-inference
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image reference: the digest wins, as what it names never changes. */}}
{{- define "exo-inference.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else if eq $tag "latest" -}}
{{- fail "image.tag is \"latest\", which names another image tomorrow: give a version, or a digest in image.digest" -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* Name of a component's ServiceAccount. Takes a dict: root, component. */}}
{{- define "exo-inference.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- $own := printf "%s-%s" (include "exo-inference.fullname" .root) .component -}}
{{- default ($account.create | ternary $own "default") $account.name -}}
{{- end -}}

{{- define "exo-inference.credentialsSecret" -}}
{{- default (printf "%s-credentials" (include "exo-inference.fullname" .)) .Values.credentials.existingSecret -}}
{{- end -}}

{{/*
Name of the objects that belong to no namespace: unique in the cluster. Where name and namespace are too
long together for a label's length, a hash of both stands for what is cut off.
*/}}
{{- define "exo-inference.clusterName" -}}
{{- $name := printf "%s-%s" (include "exo-inference.fullname" .) .Release.Namespace -}}
{{- if gt (len $name) 63 -}}
{{- $both := printf "%s/%s" .Release.Namespace (include "exo-inference.fullname" .) -}}
{{- printf "%s-%s" ($name | trunc 52 | trimSuffix "-") ($both | sha256sum | trunc 10) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/*
Name of the Lease that makes one controller the leader. It is in the namespace of the objects, so that
two control planes that are given the same namespace do not both reconcile it.
*/}}
{{- define "exo-inference.lease" -}}
{{ include "exo-inference.fullname" . }}-controller
{{- end -}}

{{/* Base URL of the gateway as clients reach it. */}}
{{- define "exo-inference.gatewayUrl" -}}
{{- $gateway := .Values.gateway -}}
{{- if $gateway.publicUrl -}}
{{- $gateway.publicUrl -}}
{{- else if and $gateway.ingress.enabled $gateway.ingress.hosts -}}
{{- printf "%s://%s" ($gateway.ingress.tlsSecretName | empty | ternary "http" "https") (first $gateway.ingress.hosts) -}}
{{- else if and $gateway.httpRoute.enabled $gateway.httpRoute.hostnames -}}
{{- printf "https://%s" (first $gateway.httpRoute.hostnames) -}}
{{- else -}}
{{- $port := int64 $gateway.service.port -}}
{{- printf "http://%s-gateway.%s.svc%s" (include "exo-inference.fullname" .) .Release.Namespace (eq $port 80 | ternary "" (printf ":%d" $port)) -}}
{{- end -}}
{{- end -}}

{{/* Base URLs that clients may reach the API under: names of its Service, its Ingress, its route. */}}
{{- define "exo-inference.apiAddresses" -}}
{{- $controller := .Values.controller -}}
{{- $port := int64 $controller.service.port -}}
{{- $suffix := eq $port 80 | ternary "" (printf ":%d" $port) -}}
{{- $service := printf "%s-controller" (include "exo-inference.fullname" .) -}}
{{- $full := printf "%s.%s" $service .Release.Namespace -}}
{{- $found := list -}}
{{- range $name := list $service $full (printf "%s.svc" $full) (printf "%s.svc.cluster.local" $full) -}}
{{- $found = append $found (printf "http://%s%s" $name $suffix) -}}
{{- end -}}
{{- if $controller.ingress.enabled -}}
{{- range $controller.ingress.hosts -}}
{{- $found = append $found (printf "%s://%s" ($controller.ingress.tlsSecretName | empty | ternary "http" "https") .) -}}
{{- end -}}
{{- end -}}
{{- if $controller.httpRoute.enabled -}}
{{- range $controller.httpRoute.hostnames -}}
{{- $found = append $found (printf "https://%s" .) -}}
{{- end -}}
{{- end -}}
{{- join " " $found -}}
{{- end -}}

{{/* How many processes a pod of a component has. Takes a dict: root, component. */}}
{{- define "exo-inference.processes" -}}
{{- eq .component "controller" | ternary 1 (int64 .root.Values.gateway.processesPerPod) -}}
{{- end -}}

{{/* Name of the metrics port of a pod's process. Takes its number, from 0. */}}
{{- define "exo-inference.metricsPort" -}}
metrics{{ with . }}-{{ . }}{{ end }}
{{- end -}}

{{/* Arguments of a component. Takes a dict: root, component. */}}
{{- define "exo-inference.args" -}}
- --platform=kubernetes
- --namespace={{ include "exo-inference.inferenceNamespace" .root }}
{{- with (index .root.Values .component).extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where a gateway or an engine sends its spans. Takes the root. */}}
{{- define "exo-inference.tracingEnv" -}}
{{- with .Values.tracing -}}
{{- if .endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .ratio | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Environment of a component. Takes a dict: root, component, process. */}}
{{- define "exo-inference.env" -}}
{{- $root := .root -}}
- name: EXO_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: EXO_POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: EXO_LISTEN_PORT
  value: {{ eq .component "controller" | ternary "8080" "8081" | quote }}
- name: EXO_METRICS_PORT
  value: {{ add 9090 .process | quote }}
# The root file system is read-only; Helm and the Hub's client keep their caches below HOME.
- name: HOME
  value: /tmp
{{- if eq .component "controller" }}
- name: EXO_ZONE
  value: {{ $root.Values.zone | quote }}
- name: EXO_LEASE
  value: {{ include "exo-inference.lease" $root }}
- name: EXO_CREDENTIALS_SECRET
  value: {{ include "exo-inference.credentialsSecret" $root }}
- name: EXO_GATEWAY_URL
  value: {{ include "exo-inference.gatewayUrl" $root | quote }}
- name: EXO_API_ADDRESSES
  value: {{ include "exo-inference.apiAddresses" $root | quote }}
- name: EXO_GATEWAY_NAMESPACE
  value: {{ $root.Release.Namespace }}
- name: EXO_PLATFORM_FILE
  value: /etc/exo/platform.json
{{- with $root.Values.controller.publicEndpoint }}
- name: EXO_PUBLIC_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- else }}
- name: EXO_DRAIN_SECONDS
  value: {{ int64 $root.Values.gateway.drainSeconds | quote }}
{{- with $root.Values.gateway.hold }}
- name: EXO_HOLD_SECONDS
  value: {{ int64 .seconds | quote }}
- name: EXO_HOLD_REQUESTS
  value: {{ int64 .maxRequests | quote }}
{{- end }}
{{- end }}
{{- if eq .component "gateway" }}
{{- with include "exo-inference.tracingEnv" $root }}
{{ . }}
{{- end }}
{{- end }}
{{- with (index $root.Values .component).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What no schema can say, each with a sentence. Rendered as nothing. */}}
{{- define "exo-inference.validate" -}}
{{- $root := . -}}
{{- range $component := list "controller" "gateway" -}}
{{- $values := index $root.Values $component -}}
{{- if and $values.ingress.enabled $values.httpRoute.enabled -}}
{{- fail (printf "%s.ingress.enabled and %s.httpRoute.enabled are both true: choose one way in" $component $component) -}}
{{- end -}}
{{- if and $values.ingress.enabled (not $values.ingress.hosts) -}}
{{- fail (printf "%s.ingress.enabled is true, but %s.ingress.hosts is empty: give its host names" $component $component) -}}
{{- end -}}
{{- if and $values.httpRoute.enabled (not $values.httpRoute.parentRefs) -}}
{{- fail (printf "%s.httpRoute.enabled is true, but %s.httpRoute.parentRefs is empty: name the Gateway it belongs to" $component $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
