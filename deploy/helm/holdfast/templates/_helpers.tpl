{{- define "holdfast.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The DNS name of a node: holdfast.node (dict "root" $ "index" 0) */ -}}
{{- define "holdfast.node" -}}
{{- $name := include "holdfast.name" .root -}}
{{ printf "%s-%d.%s-peers.%s.svc" $name (int .index) $name .root.Release.Namespace }}
{{- end }}

{{- define "holdfast.peers" -}}
{{- $root := . -}}
{{- $name := include "holdfast.name" . -}}
{{- $peers := list -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $peers = append $peers (printf "%s-%d=https://%s:2380" $name $i (include "holdfast.node" (dict "root" $root "index" $i))) -}}
{{- end -}}
{{ join "," $peers }}
{{- end }}

{{- define "holdfast.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "holdfast.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
