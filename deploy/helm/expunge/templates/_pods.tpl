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

{{- /* What every process of ours is told: "root", and in "own" the settings that the container has values of its own for.
The secret files lie in one folder; each process finds there what it may read. */ -}}
{{- define "expunge.settings" -}}
- {name: EXPUNGE_MODE, value: production}
- {name: EXPUNGE_HOME, value: /var/lib/expunge}
- {name: EXPUNGE_STORE, value: {{ .root.Values.storage.store.url | default "/var/lib/expunge/store" | quote }}}
- {name: EXPUNGE_RECIPES, value: /opt/recipes}
- {name: EXPUNGE_SECRETS, value: /run/secrets/expunge}
{{- range $name, $value := omit .root.Values.settings (.own | default "") }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end -}}

{{- /* What the API is not told: it can open neither states nor vectors, and reads no data. */ -}}
{{- define "expunge.private" -}}
- {name: EXPUNGE_PRIVATE_STORE, value: {{ .Values.storage.privateStore.url | default "/var/lib/expunge/private" | quote }}}
- {name: EXPUNGE_KEY_FOLDER, value: {{ .Values.storage.keyFolder.url | default "/var/lib/expunge/keys" | quote }}}
{{- if .Values.storage.data.claim }}
- {name: EXPUNGE_DATA, value: /opt/data}
{{- end }}
{{- end -}}

{{- define "expunge.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* A pod with a card needs torch for CUDA. */ -}}
{{- define "expunge.workerImage" -}}
{{- $image := include "expunge.image" . }}
{{- with .Values.worker.gpu }}
{{- if not .enabled }}{{ $image }}{{ else if .tag }}{{ $.Values.image.repository }}:{{ .tag }}{{ else }}{{ $image }}-cuda{{ end }}
{{- end }}
{{- end -}}

{{- define "expunge.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Of the pods that people or Helm start: no account, and nothing is asked of Kubernetes. */ -}}
{{- define "expunge.bare" -}}
automountServiceAccountToken: false
# Kubernetes' own variables for services would begin with EXPUNGE_
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "expunge.pod" -}}
serviceAccountName: {{ .Release.Name }}-expunge
{{ include "expunge.bare" . }}
{{- end -}}

{{- /* On which machines a pod runs: nodeSelector, tolerations and affinity of its values. */ -}}
{{- define "expunge.machines" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The pods of one component go to different machines where there are some. */ -}}
{{- define "expunge.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .root.Values.spread.topologyKey }}
    whenUnsatisfiable: {{ .root.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "expunge.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Pods roll when one of the Secrets that they hold changes: the annotation has its resourceVersion, never its content.
Settings are written into the pod, which rolls with them anyhow. Without a cluster (helm template) nothing is looked up. */ -}}
{{- define "expunge.rolls" -}}
{{- $names := list .environment }}
{{- with .files.secret }}{{ $names = append $names .secretName }}{{ end }}
{{- $seen := list }}
{{- range $names }}
{{- $found := lookup "v1" "Secret" $.root.Release.Namespace . }}
{{- with $found }}{{ $seen = append $seen (printf "%s %s" .metadata.name .metadata.resourceVersion) }}{{ end }}
{{- end }}
checksum/secrets: {{ join "\n" $seen | sha256sum }}
{{- end -}}

{{- /* A process that listens on no port is alive while it touches its file, every five seconds. The file is missing until
the database answers: a start may take ten minutes. */ -}}
{{- define "expunge.heartbeat" -}}
{{- $fresh := printf "test -n \"$(find /tmp/%s.heartbeat -newermt '-60 seconds')\"" . }}
startupProbe:
  exec: {command: [sh, -c, {{ $fresh | quote }}]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 120
livenessProbe:
  exec: {command: [sh, -c, {{ $fresh | quote }}]}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{- define "expunge.mounts" -}}
- {name: home, mountPath: /var/lib/expunge}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /run/secrets/expunge, readOnly: true}
- {name: recipes, mountPath: /opt/recipes, readOnly: true}
{{- end -}}

{{- /* In memory, as Compose's: what passes through /tmp may be rows of people, and stays on no disk of a machine. */ -}}
{{- define "expunge.own" -}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {medium: Memory}}
{{- end -}}

{{- define "expunge.volumes" -}}
{{ include "expunge.own" . }}
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
{{- if .Values.storage.data.claim }}
- {name: data, mountPath: /opt/data, readOnly: true}
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
{{- with .Values.storage.data.claim }}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end -}}
