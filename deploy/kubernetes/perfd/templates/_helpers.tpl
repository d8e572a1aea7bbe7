{{- define "perfd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "perfd.selectorLabels" -}}
app.kubernetes.io/name: perfd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "perfd.labels" -}}
{{ include "perfd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "perfd.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "perfd.aggregatorAddress" -}}
{{- if .Values.aggregatorAddress -}}
{{- .Values.aggregatorAddress -}}
{{- else if .Values.gateway.enabled -}}
{{- printf "%s-gateway.%s.svc:9461" (include "perfd.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- printf "%s-aggregator.%s.svc:9461" (include "perfd.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* `true` where the aggregators are a group, empty elsewhere. */}}
{{- define "perfd.group" -}}
{{- with .Values.aggregator.config.nats -}}
{{- if .group -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "perfd.serviceAccountName" -}}
{{- with .Values.serviceAccount -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- include "perfd.fullname" $ -}}
{{- else -}}
default
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every container of perfd may do: nothing. */}}
{{- define "perfd.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "perfd.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* A security context from the values, which replaces the chart's as a whole, {} too. Takes both as a list. */}}
{{- define "perfd.overridden" -}}
{{- $value := index . 0 -}}
{{- if kindIs "map" $value -}}
{{- toYaml $value -}}
{{- else -}}
{{- index . 1 -}}
{{- end -}}
{{- end -}}

{{/* Where pods run, of .aggregator or .agent. */}}
{{- define "perfd.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
