{{- define "crem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "crem" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-crem" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels by which selectors find the pods. They never change. Call with (list . COMPONENT). */ -}}
{{- define "crem.selectorLabels" -}}
app.kubernetes.io/name: crem
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- /* Labels of every object. Call with (list . COMPONENT). */ -}}
{{- define "crem.labels" -}}
{{- $ := index . 0 -}}
{{ include "crem.selectorLabels" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: crem
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "crem.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* The documents of a file of config/ that have one kind, as a JSON list. Call with (list . FILE KIND). */ -}}
{{- define "crem.documents" -}}
{{- $found := list -}}
{{- $kind := index . 2 -}}
{{- range regexSplit "(?m)^---$" ((index . 0).Files.Get (index . 1)) -1 -}}
{{- $doc := fromYaml . -}}
{{- if eq (dig "kind" "" $doc) $kind -}}{{- $found = append $found $doc -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* The container of the operator's program, restricted. */ -}}
{{- define "crem.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "crem.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Annotations of what helm uninstall makes first. */ -}}
{{- define "crem.cleanupHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
