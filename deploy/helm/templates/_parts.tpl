{{- define "dpswd.name" -}}
{{- if contains "dpswd" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-dpswd" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "dpswd.selector" -}}
app.kubernetes.io/name: dpswd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dpswd.labels" -}}
{{ include "dpswd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dpswd.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "dpswd.claim" -}}
{{- $own := index .root.Values.storage .volume }}{{ $own.claim | default (printf "%s-%s" (include "dpswd.name" .root) .volume) }}
{{- end }}

{{/* Of every pod: nothing of the cluster inside, nobody's rights. */}}
{{- define "dpswd.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # The default would open the keys' mode 0600 to the group at every start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Of every container. */}}
{{- define "dpswd.container" -}}
image: {{ include "dpswd.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{ toJson .Values.resources }}
{{- end }}

{{/* Settings of the ledger's place, for whoever opens it. */}}
{{- define "dpswd.environment" -}}
envFrom:
  - configMapRef: {name: {{ include "dpswd.name" . }}-settings}
{{- end }}

{{- define "dpswd.mounts" -}}
- {name: home, mountPath: /var/lib/dpswd}
- {name: records, mountPath: /records, readOnly: true}
- {name: scratch, mountPath: /tmp}
{{- if .Values.database.url }}
- {name: database, mountPath: /etc/dpswd, readOnly: true}
{{- end }}
{{- end }}

{{/* The home aside, which a replica has of its own. */}}
{{- define "dpswd.volumes" -}}
- name: records
  persistentVolumeClaim: {claimName: {{ include "dpswd.claim" (dict "root" . "volume" "records") }}, readOnly: true}
- name: scratch
  emptyDir: {sizeLimit: 256Mi}
{{- if .Values.database.url }}
- name: database
  secret:
    secretName: {{ .Values.database.secret }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.database.key }}, path: password}
{{- end }}
{{- end }}

{{- define "dpswd.home" -}}
- name: home
  persistentVolumeClaim: {claimName: {{ include "dpswd.claim" (dict "root" . "volume" "home") }}}
{{- end }}
