{{/* Name of everything in the release: several releases live side by side. */}}
{{- define "bladellm.fullname" -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* What finds the operator's pods. LLMServices' NetworkPolicies let pods of this app.kubernetes.io/name in. */}}
{{- define "bladellm.selector" -}}
app.kubernetes.io/name: bladellm-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bladellm.labels" -}}
{{ include "bladellm.selector" . }}
{{ include "bladellm.commonLabels" . }}
{{- end -}}

{{- define "bladellm.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: bladellm
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image reference. Takes (list IMAGE-VALUES ROOT). */}}
{{- define "bladellm.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{- with $image.registry -}}{{ . }}/{{- end -}}
{{- $image.repository -}}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ $image.tag | default $root.Chart.AppVersion }}{{- end -}}
{{- end -}}

{{/* NAME=VALUE,… of Prometheus' pods. */}}
{{- define "bladellm.prometheusLabels" -}}
{{- $pairs := list -}}
{{- range $name, $value := .Values.prometheus.podLabels -}}{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{/* Whether pods may name no ids: not empty if so. */}}
{{- define "bladellm.openshift" -}}
{{- if eq (toString .Values.openshift) "auto" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}yes{{- end -}}
{{- else if .Values.openshift -}}yes{{- end -}}
{{- end -}}

{{/* No ids: the image's own user runs, on OpenShift one of the namespace's. */}}
{{- define "bladellm.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "bladellm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The Secret that the chart makes for external metrics. */}}
{{- define "bladellm.externalMetricsSecret" -}}
{{ include "bladellm.fullname" . }}-external-metrics
{{- end -}}
