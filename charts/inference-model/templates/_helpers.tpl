{{/* Name of the claim, and in front of the Job's. */}}
{{- define "inference-model.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "inference-model.claimName" -}}
{{- default (include "inference-model.fullname" .) .Values.storage.existingClaim -}}
{{- end -}}

{{/* A Job cannot be changed, so each version of these values is a Job of its own. */}}
{{- define "inference-model.jobName" -}}
{{- $what := dict "values" (omit .Values "global") "chart" .Chart.Version -}}
{{- printf "%s-%s" (include "inference-model.fullname" .) ($what | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{- define "inference-model.labels" -}}
app.kubernetes.io/name: inference-model
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: model
app.kubernetes.io/part-of: exo-inference
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.model.name }}
inference.exo.dev/model: {{ . | quote }}
{{- end }}
{{- with .Values.model.uid }}
inference.exo.dev/model-uid: {{ . | quote }}
{{- end }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image reference: the digest wins, as what it names never changes. */}}
{{- define "inference-model.image" -}}
{{- $image := .Values.download.image -}}
{{- $tag := default .Chart.AppVersion $image.tag -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else if eq $tag "latest" -}}
{{- fail "download.image.tag is \"latest\", which names another image tomorrow: give a version, or a digest in download.image.digest" -}}
{{- else -}}
{{- printf "%s:%s" $image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* Size of the claim: file systems keep some for themselves, and a file is whole only at its end. */}}
{{- define "inference-model.size" -}}
{{- $bytes := int64 .Values.model.sizeBytes -}}
{{- if .Values.storage.size -}}
{{- .Values.storage.size -}}
{{- else if eq $bytes 0 -}}
{{- fail "the claim has no size: give model.sizeBytes or storage.size, or storage.existingClaim" -}}
{{- else -}}
{{- $wanted := add $bytes (div $bytes 10) 1073741824 -}}
{{- printf "%dGi" (div (add $wanted 1073741823) 1073741824) -}}
{{- end -}}
{{- end -}}

{{/* What no schema can say, each with a sentence. Rendered as nothing. */}}
{{- define "inference-model.validate" -}}
{{- if not .Values.model.source -}}
{{- fail "model.source is empty: give the model's source, for example Qwen/Qwen3-0.6B" -}}
{{- end -}}
{{- if hasPrefix "file:" .Values.model.source -}}
{{- fail (printf "model.source %q is a directory of one machine, which a cluster does not have: put the files on a claim and name it in storage.existingClaim of a release with another source" .Values.model.source) -}}
{{- end -}}
{{- if and .Values.storage.subPath (not .Values.storage.existingClaim) -}}
{{- fail "storage.subPath is for storage.existingClaim only: a claim of its own holds one model, at its root" -}}
{{- end -}}
{{- if not (or .Values.download.enabled .Values.storage.existingClaim) -}}
{{- fail "download.enabled is false and storage.existingClaim is empty, so the files would come from nowhere: set one of them" -}}
{{- end -}}
{{- end -}}
