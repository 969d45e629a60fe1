{{/*
Settings. Keys of configData are MAGNETAR_<key> in the environment of a server; what the rest of the chart relies on
(ports, addresses, files) is set beside them (_settings.tpl: never both).
*/}}

{{/* configData of a component. Keys that pulsar-helm-chart prefixes are taken, too, and win over the chart's own. */}}
{{- define "magnetar.settings" -}}
{{- $data := dict -}}
{{- $given := (index .root.Values .key).configData -}}
{{- range $isPrefixed := list false true -}}
{{- range $key, $value := $given -}}
{{- if eq (hasPrefix "PULSAR_PREFIX_" $key) $isPrefixed -}}
{{- $_ := set $data (trimPrefix "PULSAR_PREFIX_" $key) ($value | toString | trim) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* What the ConfigMap of a component holds. */}}
{{- define "magnetar.configData" -}}
{{- $data := fromYaml (include "magnetar.settings" .) -}}
{{- if eq .key "zookeeper" -}}
zoo.cfg: |
  {{- range $key, $value := $data }}
  {{ $key }}={{ $value }}
  {{- end }}
{{- else -}}
{{- toYaml $data -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.envFrom" -}}
- prefix: MAGNETAR_
  configMapRef:
    name: {{ include "magnetar.component" . }}
{{- end -}}

{{/* The pod's own names, of all servers. Arguments and later variables may name them: $(POD_NAME). */}}
{{- define "magnetar.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* Of broker, bookie, autorecovery and standalone. */}}
{{- define "magnetar.serverEnv" -}}
{{ include "magnetar.podEnv" . }}
- name: MAGNETAR_clusterName
  value: {{ include "magnetar.clusterName" .root | quote }}
- name: MAGNETAR_logFormat
  value: {{ .root.Values.logFormat | quote }}
- name: MAGNETAR_logLevel
  value: {{ .root.Values.logLevel | quote }}
{{- if ne .key "autorecovery" }}
- name: MAGNETAR_bindAddress
  value: {{ .root.Values.bindAddress | quote }}
{{- end }}
{{- end -}}

{{/* Where the cluster's metadata are. */}}
{{- define "magnetar.metadataEnv" -}}
- name: MAGNETAR_metadataStoreUrl
  value: {{ include "magnetar.metadataUrl" .root | quote }}
{{- if eq (include "magnetar.hasZooKeeperTls" .) "true" }}
- name: MAGNETAR_metadataStoreConfigPath
  value: /etc/magnetar/metadata/zookeeper.properties
{{- end }}
{{- end -}}

{{/* Zone and upgrade domain. */}}
{{- define "magnetar.placeEnv" -}}
{{- $topology := .root.Values.topology -}}
{{- $from := include "magnetar.zoneFrom" .root -}}
{{- if $topology.zone }}
- name: MAGNETAR_ZONE
  value: {{ $topology.zone | quote }}
{{- else if eq $from "podLabel" }}
- name: MAGNETAR_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ $topology.zoneLabel }}']"}}
{{- else if eq $from "node" }}
- name: MAGNETAR_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: MAGNETAR_zoneLabel
  value: {{ $topology.zoneLabel | quote }}
{{- end }}
{{- if eq .key "bookkeeper" }}
{{- if kindIs "invalid" $topology.upgradeDomains }}
{{- if eq $topology.placement "zone-aware" }}
- name: MAGNETAR_UPGRADE_DOMAIN
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- end }}
{{- else if gt (int $topology.upgradeDomains) 0 }}
- name: MAGNETAR_upgradeDomains
  value: {{ $topology.upgradeDomains | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* How bookies are reached by brokers and the toolset, in the broker's keys. */}}
{{- define "magnetar.bookieClientEnv" -}}
{{- if eq (include "magnetar.tls" (dict "root" .root "key" "bookkeeper")) "true" }}
- name: MAGNETAR_bookkeeperTLSTrustCertsFilePath
  value: /etc/magnetar/tls/ca.crt
- name: MAGNETAR_bookkeeperTLSCertificateFilePath
  value: /etc/magnetar/tls/tls.crt
- name: MAGNETAR_bookkeeperTLSKeyFilePath
  value: /etc/magnetar/tls/tls.key
{{- end }}
{{- include "magnetar.bookieTokenEnv" . }}
{{- end -}}

{{/* The token that bookies are shown. */}}
{{- define "magnetar.bookieTokenEnv" -}}
{{- if eq (include "magnetar.bookieTokens" .root) "true" }}
- name: MAGNETAR_bookkeeperClientAuthenticationPlugin
  value: token
- name: MAGNETAR_bookkeeperClientAuthenticationParameters
  value: file:///etc/magnetar/token-bookkeeper/token
{{- end }}
{{- end -}}

{{- define "magnetar.keyEnv" -}}
{{- if .root.Values.auth.authentication.jwt.usingSecretKey }}
- name: MAGNETAR_tokenSecretKey
  value: file:///etc/magnetar/token-key/secret.key
{{- else }}
- name: MAGNETAR_tokenPublicKey
  value: file:///etc/magnetar/token-key/public.key
{{- end }}
{{- end -}}

{{/* Who may use bookies and the pages of auto-recovery. */}}
{{- define "magnetar.bookieGateEnv" -}}
{{- if eq (include "magnetar.bookieTokens" .root) "true" }}
- name: MAGNETAR_authenticationEnabled
  value: "true"
- name: MAGNETAR_authenticationProviders
  value: token
- name: MAGNETAR_bookieAllowedRoles
  value: {{ .root.Values.auth.bookkeeper.role | quote }}
{{- include "magnetar.keyEnv" . }}
{{- end }}
{{- end -}}

{{/* Ports and certificates for clients, of broker and standalone. */}}
{{- define "magnetar.doorEnv" -}}
{{- $ports := (index .root.Values .key).ports -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{- $isPlain := or (not $isTls) (index .root.Values.tls .key).allowPlain -}}
- name: MAGNETAR_brokerServicePort
  value: {{ ternary $ports.pulsar "" $isPlain | quote }}
- name: MAGNETAR_webServicePort
  value: {{ ternary $ports.http "" $isPlain | quote }}
{{- if $isTls }}
- name: MAGNETAR_brokerServicePortTls
  value: {{ $ports.pulsarssl | quote }}
- name: MAGNETAR_webServicePortTls
  value: {{ $ports.https | quote }}
- name: MAGNETAR_tlsCertificateFilePath
  value: /etc/magnetar/tls/tls.crt
- name: MAGNETAR_tlsKeyFilePath
  value: /etc/magnetar/tls/tls.key
{{- end }}
{{- end -}}

{{/* The web console, of broker and standalone. */}}
{{- define "magnetar.consoleEnv" -}}
{{- $console := .root.Values.console }}
- name: MAGNETAR_webConsoleEnabled
  value: {{ $console.enabled | quote }}
- name: MAGNETAR_webConsoleReadOnly
  value: {{ $console.readOnly | quote }}
- name: MAGNETAR_webConsoleMessages
  value: {{ $console.messages | quote }}
- name: MAGNETAR_webConsoleEnvironment
  value: {{ $console.environment | quote }}
{{- if $console.ingress.enabled }}
# Whoever gets past the Ingress can only harm his own cookie, and add a field to lines of the audit.
- name: MAGNETAR_webServiceTrustXForwardedFor
  value: "true"
{{- end }}
{{- end -}}

{{/* Who clients are and what they may do, of broker and standalone. */}}
{{- define "magnetar.authEnv" -}}
{{- $auth := .root.Values.auth -}}
{{- if not $auth.authentication.enabled }}
- name: MAGNETAR_webServiceAllowedHosts
  value: {{ include "magnetar.allowedHosts" . | quote }}
{{- end }}
{{- if $auth.authentication.enabled }}
- name: MAGNETAR_authenticationEnabled
  value: "true"
- name: MAGNETAR_authenticationProviders
  value: {{ include "magnetar.providers" .root | quote }}
{{- if $auth.authentication.jwt.enabled }}
{{- include "magnetar.keyEnv" . }}
{{- end }}
{{- with $auth.authentication.openid }}
{{- if .enabled }}
- name: MAGNETAR_openIDAllowedTokenIssuers
  value: {{ join "," .openIDAllowedTokenIssuers | quote }}
- name: MAGNETAR_openIDAllowedAudiences
  value: {{ join "," .openIDAllowedAudiences | quote }}
{{- with .openIDRoleClaim }}
- name: MAGNETAR_openIDRoleClaim
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
- name: MAGNETAR_superUserRoles
  value: {{ values $auth.superUsers | compact | uniq | sortAlpha | join "," | quote }}
{{- end }}
{{- if $auth.authorization.enabled }}
- name: MAGNETAR_authorizationEnabled
  value: "true"
{{- end }}
{{- end -}}

{{- define "magnetar.providers" -}}
{{- $providers := list -}}
{{- if .Values.auth.authentication.jwt.enabled -}}
{{- $providers = append $providers "token" -}}
{{- end -}}
{{- if .Values.auth.authentication.openid.enabled -}}
{{- $providers = append $providers "openid" -}}
{{- end -}}
{{- join "," $providers -}}
{{- end -}}
