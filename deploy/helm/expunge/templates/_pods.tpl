{{- define "expunge.labels" -}}
app.kubernetes.io/name: expunge
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "expunge.selector" -}}
app.kubernetes.io/name: expunge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* What every process of ours is told. The secret files lie in one folder; each process finds there what it may read. */ -}}
{{- define "expunge.settings" -}}
- {name: EXPUNGE_MODE, value: production}
- {name: EXPUNGE_HOME, value: /var/lib/expunge}
- {name: EXPUNGE_STORE, value: {{ .Values.storage.store.url | default "/var/lib/expunge/store" | quote }}}
- {name: EXPUNGE_RECIPES, value: /opt/expunge-recipes}
- {name: EXPUNGE_SECRETS, value: /run/secrets/expunge}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "expunge.private" -}}
- {name: EXPUNGE_PRIVATE_STORE, value: {{ .Values.storage.privateStore.url | default "/var/lib/expunge/private" | quote }}}
- {name: EXPUNGE_KEY_FOLDER, value: {{ .Values.storage.keyFolder.url | default "/var/lib/expunge/keys" | quote }}}
{{- end -}}

{{- define "expunge.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "expunge.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "expunge.pod" -}}
serviceAccountName: {{ .Release.Name }}-expunge
automountServiceAccountToken: false
# Kubernetes' own variables for services would begin with EXPUNGE_
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "expunge.mounts" -}}
- {name: home, mountPath: /var/lib/expunge}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /run/secrets/expunge, readOnly: true}
- {name: recipes, mountPath: /opt/expunge-recipes, readOnly: true}
{{- end -}}

{{- define "expunge.volumes" -}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {}}
- name: recipes
  persistentVolumeClaim: {claimName: {{ .Values.storage.recipes.claim }}, readOnly: true}
{{- if not .Values.storage.store.url }}
- name: store
  persistentVolumeClaim: {claimName: {{ .Values.storage.store.claim }}}
{{- end }}
{{- end -}}

{{- define "expunge.privateMounts" -}}
{{- if not .Values.storage.store.url }}
- {name: store, mountPath: /var/lib/expunge/store}
{{- end }}
{{- if not .Values.storage.privateStore.url }}
- {name: private, mountPath: /var/lib/expunge/private}
{{- end }}
{{- if not .Values.storage.keyFolder.url }}
- {name: keys, mountPath: /var/lib/expunge/keys}
{{- end }}
{{- end -}}

{{- define "expunge.privateVolumes" -}}
{{- if not .Values.storage.privateStore.url }}
- name: private
  persistentVolumeClaim: {claimName: {{ .Values.storage.privateStore.claim }}}
{{- end }}
{{- if not .Values.storage.keyFolder.url }}
- name: keys
  persistentVolumeClaim: {claimName: {{ .Values.storage.keyFolder.claim }}}
{{- end }}
{{- end -}}
