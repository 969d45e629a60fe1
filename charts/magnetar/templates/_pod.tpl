{{/* Parts of pods. All take (dict "root" $ "key" "broker"), and say so where they need more. */}}

{{- define "magnetar.podMetadata" -}}
{{- $c := index .root.Values .key -}}
labels:
  {{- include "magnetar.selector" . | nindent 2 }}
  {{- /* Not the chart's version: pods that stay the same should live on. */}}
  {{- with .root.Values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- if $c.restartPodsOnConfigMapChange }}
  checksum/config: {{ include "magnetar.configData" . | sha256sum }}
  {{- end }}
  {{- with $c.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Everything of a pod's spec but containers and volumes. */}}
{{- define "magnetar.podSpec" -}}
{{- $c := index .root.Values .key -}}
serviceAccountName: {{ include "magnetar.component" . }}
automountServiceAccountToken: {{ include "magnetar.asksForNode" . }}
# Variables like MAGNETAR_BROKER_PORT=tcp://... look like settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "magnetar.gracePeriod" . }}
securityContext:
  {{- mergeOverwrite (deepCopy .root.Values.securityContext) (default dict $c.securityContext) | toYaml | nindent 2 }}
{{- with .root.Values.images.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $c.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $c.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $c.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "magnetar.affinity" . }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- with $c.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | nindent 4 | trim }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels:
        {{- include "magnetar.selector" $ | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "magnetar.gracePeriod" -}}
{{- $c := index .root.Values .key -}}
{{- $drain := 0 -}}
{{- if eq .key "bookkeeper" -}}
{{- $drain = ternary $c.drain.timeoutSeconds 0 $c.drain.enabled -}}
{{- end -}}
{{- add $c.gracePeriod $drain -}}
{{- end -}}

{{- define "magnetar.affinity" -}}
{{- $affinity := (index .root.Values .key).affinity -}}
{{- $type := default .root.Values.affinity.type $affinity.type -}}
{{- $key := default "kubernetes.io/hostname" $affinity.anti_affinity_topology_key -}}
{{- with omit $affinity "anti_affinity" "anti_affinity_topology_key" "type" }}
{{- toYaml . }}
{{ end }}
{{- if and .root.Values.affinity.anti_affinity $affinity.anti_affinity -}}
podAntiAffinity:
  {{ $type }}:
    {{- if eq $type "requiredDuringSchedulingIgnoredDuringExecution" }}
    - topologyKey: {{ $key }}
      labelSelector:
        matchLabels:
          {{- include "magnetar.selector" . | nindent 10 }}
    {{- else }}
    - weight: 100
      podAffinityTerm:
        topologyKey: {{ $key }}
        labelSelector:
          matchLabels:
            {{- include "magnetar.selector" . | nindent 12 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* Add "live" and "ready", the probes' actions; "slow": nothing answers before the server serves. */}}
{{- define "magnetar.probes" -}}
{{- $probe := (index .root.Values .key).probe -}}
{{- $live := .live -}}
{{- $ready := .ready -}}
{{- $slow := .slow -}}
{{- range $name, $action := dict "startup" $live "liveness" $live "readiness" $ready }}
{{- $settings := index $probe $name }}
{{- if or $settings.enabled (and $slow (eq $name "startup")) }}
{{ $name }}Probe:
  {{- omit $settings "enabled" | merge (deepCopy $action) | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of a server of ours; add "port" and "scheme". */}}
{{- define "magnetar.httpProbes" -}}
{{- $live := dict "httpGet" (dict "path" "/livez" "port" .port "scheme" .scheme) -}}
{{- $ready := dict "httpGet" (dict "path" "/readyz" "port" .port "scheme" .scheme) -}}
{{- /* Behind TLS alone there is no page while a server waits for ZooKeeper: it must not be killed. */}}
{{- include "magnetar.probes" (dict "root" .root "key" .key "live" $live "ready" $ready "slow" (eq .scheme "HTTPS")) -}}
{{- end -}}

{{/* Image, resources, rights: the begin of a container. */}}
{{- define "magnetar.container" -}}
name: {{ (index .root.Values .key).component }}
{{ include "magnetar.image" . }}
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml (index .root.Values .key).resources | nindent 2 }}
{{- end -}}

{{- define "magnetar.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if eq (include "magnetar.hasCertificate" .) "true" }}
- name: tls
  mountPath: /etc/magnetar/tls
  readOnly: true
{{- end }}
{{- if eq (include "magnetar.hasZooKeeperTls" .) "true" }}
- name: metadata
  mountPath: /etc/magnetar/metadata
  readOnly: true
{{- end }}
{{- if eq (include "magnetar.hasKey" .) "true" }}
- name: token-key
  mountPath: /etc/magnetar/token-key
  readOnly: true
{{- end }}
{{- range fromYamlArray (include "magnetar.tokens" .) }}
- name: token-{{ .name }}
  mountPath: /etc/magnetar/token-{{ .name }}
  readOnly: true
{{- end }}
{{- with (index .root.Values .key).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Secrets can be read by the pod's group (fsGroup) alone. A compaction has 24 bytes of each key in tmp. */}}
{{- define "magnetar.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
{{- if eq (include "magnetar.hasCertificate" .) "true" }}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "magnetar.certificateSecret" . | quote }}
          items:
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
            {{- if not .root.Values.tls.caSecretName }}
            - {key: ca.crt, path: ca.crt}
            {{- end }}
            {{- if eq .key "zookeeper" }}
            - {key: tls-combined.pem, path: tls-combined.pem}
            {{- end }}
      {{- with .root.Values.tls.caSecretName }}
      - secret:
          name: {{ . | quote }}
          items:
            - {key: ca.crt, path: ca.crt}
      {{- end }}
{{- end }}
{{- if eq (include "magnetar.hasZooKeeperTls" .) "true" }}
- name: metadata
  configMap:
    name: {{ include "magnetar.fullname" .root }}-metadata
{{- end }}
{{- if eq (include "magnetar.hasKey" .) "true" }}
- name: token-key
  secret:
    secretName: {{ include "magnetar.keySecret" .root | quote }}
    defaultMode: 0440
    items:
      {{- if .root.Values.auth.authentication.jwt.usingSecretKey }}
      - {key: SECRETKEY, path: secret.key}
      {{- else }}
      - {key: PUBLICKEY, path: public.key}
      {{- end }}
{{- end }}
{{- range fromYamlArray (include "magnetar.tokens" .) }}
- name: token-{{ .name }}
  secret:
    secretName: {{ include "magnetar.tokenSecret" (dict "root" $.root "role" .role) | quote }}
    defaultMode: 0440
    items:
      - {key: TOKEN, path: token}
{{- end }}
{{- with (index .root.Values .key).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* "true" for clients of ZooKeeper over TLS. */}}
{{- define "magnetar.hasZooKeeperTls" -}}
{{- and (has .key (list "bookkeeper" "autorecovery" "broker" "toolset")) (not .root.Values.standalone.enabled) (eq (include "magnetar.tls" (dict "root" .root "key" "zookeeper")) "true") -}}
{{- end -}}

{{/* "true" where tokens are checked. */}}
{{- define "magnetar.hasKey" -}}
{{- $clients := and (has .key (list "broker" "standalone")) (eq (include "magnetar.jwt" .root) "true") -}}
{{- $bookies := and (has .key (list "bookkeeper" "autorecovery")) (eq (include "magnetar.bookieTokens" .root) "true") -}}
{{- or $clients $bookies -}}
{{- end -}}

{{/* Tokens that a component shows: name of the volume and role. */}}
{{- define "magnetar.tokens" -}}
{{- $users := .root.Values.auth.superUsers -}}
{{- if eq (include "magnetar.jwt" .root) "true" }}
{{- if eq .key "broker" }}
- {name: broker, role: {{ $users.broker | quote }}}
{{- else if eq .key "toolset" }}
- {name: client, role: {{ $users.client | quote }}}
{{- end }}
{{- end }}
{{- if and (eq (include "magnetar.bookieTokens" .root) "true") (has .key (list "bookkeeper" "autorecovery" "broker" "toolset")) }}
- {name: bookkeeper, role: {{ .root.Values.auth.bookkeeper.role | quote }}}
{{- end }}
{{- end -}}

{{/* Values of the volumes with a component's data, as YAML lists: name, size, storageClassName, selector. */}}
{{- define "magnetar.journals" -}}
{{- $volumes := (index .root.Values .key).volumes -}}
{{- if or (ne .key "bookkeeper") $volumes.useSingleCommonVolume -}}
[]
{{- else -}}
{{- ternary $volumes.journal.multiVolumes (list $volumes.journal) $volumes.journal.useMultiVolumes | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.dataVolumes" -}}
{{- $volumes := (index .root.Values .key).volumes -}}
{{- if ne .key "bookkeeper" -}}
{{- list $volumes.data | toYaml -}}
{{- else if $volumes.useSingleCommonVolume -}}
{{- list $volumes.common | toYaml -}}
{{- else -}}
{{- ternary $volumes.ledgers.multiVolumes (list $volumes.ledgers) $volumes.ledgers.useMultiVolumes | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.allVolumes" -}}
{{- concat (include "magnetar.journals" . | fromYamlArray) (include "magnetar.dataVolumes" . | fromYamlArray) | toYaml -}}
{{- end -}}

{{/* The claims of a component. */}}
{{- define "magnetar.claims" -}}
{{- $c := index .root.Values .key -}}
{{- if and .root.Values.volumes.persistence $c.volumes.persistence }}
persistentVolumeClaimRetentionPolicy:
  {{- toYaml .root.Values.volumes.retention | nindent 2 }}
volumeClaimTemplates:
  {{- range include "magnetar.allVolumes" . | fromYamlArray }}
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata:
      name: {{ .name }}
      labels:
        {{- include "magnetar.selector" $ | nindent 8 }}
    spec:
      accessModes: [ReadWriteOnce]
      resources:
        requests:
          storage: {{ .size }}
      {{- with .storageClassName }}
      storageClassName: {{ . | quote }}
      {{- end }}
      {{- with .selector }}
      selector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where there are no claims: directories that die with the pod. */}}
{{- define "magnetar.emptyDirs" -}}
{{- $c := index .root.Values .key -}}
{{- if not (and .root.Values.volumes.persistence $c.volumes.persistence) }}
{{- range include "magnetar.allVolumes" . | fromYamlArray }}
- name: {{ .name }}
  emptyDir: {sizeLimit: {{ .size }}}
{{- end }}
{{- end }}
{{- end -}}
