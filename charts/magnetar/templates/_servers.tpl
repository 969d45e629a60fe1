{{/* Variables of each component's own process. All take (dict "root" $ "key" "broker"). */}}

{{- define "magnetar.env.zookeeper" -}}
{{ include "magnetar.podEnv" . }}
{{- end -}}

{{- define "magnetar.env.bookkeeper" -}}
{{- $c := .root.Values.bookkeeper -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{ include "magnetar.serverEnv" . }}
{{ include "magnetar.metadataEnv" . }}
{{- include "magnetar.placeEnv" . }}
- name: MAGNETAR_advertisedAddress
  value: $(POD_NAME).{{ include "magnetar.podDomain" . }}
# Of the copies that it makes itself, after a loss or with autoRecoveryDaemonEnabled.
- name: MAGNETAR_ensemblePlacementPolicy
  value: {{ .root.Values.topology.placement }}
- name: MAGNETAR_bookiePort
  value: {{ $c.ports.bookie | quote }}
- name: MAGNETAR_bookieProtocolPort
  value: {{ $c.ports.protocol | quote }}
{{ include "magnetar.pagesEnv" . }}
{{- with fromYamlArray (include "magnetar.journals" .) }}
- name: MAGNETAR_journalDirectories
  value: {{ include "magnetar.directories" . | quote }}
{{- end }}
- name: MAGNETAR_ledgerDirectories
  value: {{ include "magnetar.directories" (fromYamlArray (include "magnetar.dataVolumes" .)) | quote }}
{{- if $isTls }}
- name: MAGNETAR_tlsCertificatePath
  value: /etc/magnetar/tls/tls.crt
- name: MAGNETAR_tlsKeyPath
  value: /etc/magnetar/tls/tls.key
- name: MAGNETAR_tlsTrustPath
  value: /etc/magnetar/tls/ca.crt
- name: MAGNETAR_tlsClientAuthentication
  value: {{ .root.Values.tls.bookie.clientAuthentication | quote }}
{{- end }}
{{- include "magnetar.bookieGateEnv" . }}
{{- include "magnetar.bookieTokenEnv" . }}
{{- end -}}

{{- define "magnetar.env.autorecovery" -}}
{{ include "magnetar.serverEnv" . }}
{{ include "magnetar.metadataEnv" . }}
{{- include "magnetar.placeEnv" . }}
- name: MAGNETAR_ensemblePlacementPolicy
  value: {{ .root.Values.topology.placement }}
{{ include "magnetar.pagesEnv" . }}
{{- include "magnetar.bookieGateEnv" . }}
{{- include "magnetar.bookieClientEnv" . }}
{{- end -}}

{{- define "magnetar.env.broker" -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{ include "magnetar.serverEnv" . }}
{{ include "magnetar.metadataEnv" . }}
{{- include "magnetar.placeEnv" . }}
- name: MAGNETAR_advertisedAddress
  value: $(POD_NAME).{{ include "magnetar.podDomain" . }}
{{- if .root.Values.broker.external.enabled }}
- name: MAGNETAR_advertisedListeners
  value: {{ include "magnetar.listeners" . | quote }}
- name: MAGNETAR_internalListenerName
  value: internal
{{- end }}
{{- with .root.Values.pulsar_metadata.bookkeeperMetadataServiceUri }}
- name: MAGNETAR_bookkeeperMetadataServiceUri
  value: {{ . | quote }}
{{- end }}
- name: MAGNETAR_bookkeeperEnsemblePlacementPolicy
  value: {{ .root.Values.topology.placement }}
{{ include "magnetar.doorEnv" . }}
{{- include "magnetar.consoleEnv" . }}
{{- if $isTls }}
- name: MAGNETAR_brokerClientTlsEnabled
  value: "true"
- name: MAGNETAR_brokerClientTrustCertsFilePath
  value: /etc/magnetar/tls/ca.crt
{{- end }}
{{- include "magnetar.authEnv" . }}
{{- if eq (include "magnetar.jwt" .root) "true" }}
- name: MAGNETAR_brokerClientAuthenticationPlugin
  value: token
- name: MAGNETAR_brokerClientAuthenticationParameters
  value: file:///etc/magnetar/token-broker/token
{{- end }}
{{- include "magnetar.bookieClientEnv" . }}
{{- end -}}

{{- define "magnetar.env.standalone" -}}
{{ include "magnetar.serverEnv" . }}
- name: MAGNETAR_advertisedAddress
  value: {{ include "magnetar.serviceHost" . }}
- name: MAGNETAR_bookiePort
  value: {{ .root.Values.standalone.ports.bookie | quote }}
{{ include "magnetar.doorEnv" . }}
{{- include "magnetar.consoleEnv" . }}
{{- include "magnetar.authEnv" . }}
{{- end -}}

{{- define "magnetar.env.toolset" -}}
{{- $server := dict "root" .root "key" (ternary "standalone" "broker" .root.Values.standalone.enabled) -}}
{{- $isTls := eq (include "magnetar.tls" $server) "true" -}}
- name: HOME
  value: /tmp
- name: MAGNETAR_SERVICE_URL
  value: {{ include "magnetar.serviceUrl" $server }}
- name: MAGNETAR_ADMIN_URL
  value: {{ include "magnetar.adminUrl" $server }}
{{- if $isTls }}
- name: MAGNETAR_TLS_TRUST_CERT_PATH
  value: /etc/magnetar/tls/ca.crt
{{- end }}
{{- if eq (include "magnetar.jwt" .root) "true" }}
- name: MAGNETAR_AUTH_PLUGIN
  value: token
- name: MAGNETAR_AUTH_PARAMS
  value: file:///etc/magnetar/token-client/token
{{- end }}
{{- if not .root.Values.standalone.enabled }}
{{ include "magnetar.metadataEnv" . }}
{{- include "magnetar.bookieClientEnv" . }}
{{- end }}
{{- end -}}

{{/* The HTTP port of bookies and auto-recovery. */}}
{{- define "magnetar.pagesEnv" -}}
- name: MAGNETAR_httpServerEnabled
  value: "true"
- name: MAGNETAR_httpServerHost
  value: {{ .root.Values.bindAddress | quote }}
- name: MAGNETAR_httpServerPort
  value: {{ (index .root.Values .key).ports.http | quote }}
{{- if ne (include "magnetar.bookieTokens" .root) "true" }}
- name: MAGNETAR_httpServerAllowedHosts
  value: {{ include "magnetar.allowedHosts" . | quote }}
{{- end }}
{{- end -}}

{{/* Directories on volumes, with commas. */}}
{{- define "magnetar.directories" -}}
{{- $paths := list -}}
{{- range . -}}
{{- $paths = append $paths (printf "/var/lib/magnetar/%s/bookie" .name) -}}
{{- end -}}
{{- join "," $paths -}}
{{- end -}}
