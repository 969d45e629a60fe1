{{/* Names and labels. Most take (dict "root" $ "key" "broker"): the component as values.yaml names it. */}}

{{- define "magnetar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "magnetar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "magnetar.cut" .Values.fullnameOverride -}}
{{- else if contains (include "magnetar.name" .) .Release.Name -}}
{{- include "magnetar.cut" .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "magnetar.name" .) | include "magnetar.cut" -}}
{{- end -}}
{{- end -}}

{{/* At most 40 characters; what is cut ends with a sum of the whole, or two names could become one. */}}
{{- define "magnetar.cut" -}}
{{- if gt (len .) 40 -}}
{{- printf "%s-%s" (trunc 33 . | trimSuffix "-") (sha256sum . | trunc 6) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.clusterName" -}}
{{- default (include "magnetar.fullname" .) .Values.clusterName -}}
{{- end -}}

{{/* Keys of the components that this release has, as a YAML list. */}}
{{- define "magnetar.enabled" -}}
{{- if .Values.standalone.enabled }}
- standalone
{{- else }}
{{- range list "zookeeper" "bookkeeper" "autorecovery" "broker" }}
{{- if index $.Values.components . }}
- {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.components.toolset }}
- toolset
{{- end }}
{{- end -}}

{{- define "magnetar.component" -}}
{{- printf "%s-%s" (include "magnetar.fullname" .root) (index .root.Values .key).component -}}
{{- end -}}

{{- define "magnetar.headless" -}}
{{- printf "%s-headless" (include "magnetar.component" .) -}}
{{- end -}}

{{/* Domain of a component's pods: <pod>.<this>. */}}
{{- define "magnetar.podDomain" -}}
{{- printf "%s.%s.svc.%s" (include "magnetar.headless" .) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/*
Names by which a component's HTTP port is known, in all forms that resolve in a cluster: with them a page whose name is
re-pointed to a pod is refused (docs/guides/http.md, "Browsers"). Addresses (probes, Prometheus) and localhost always are.
*/}}
{{- define "magnetar.allowedHosts" -}}
{{- $names := list -}}
{{- $headless := include "magnetar.headless" . -}}
{{- range $host := list (include "magnetar.component" .) $headless (printf "*.%s" $headless) -}}
{{- $inNamespace := printf "%s.%s" $host $.root.Release.Namespace -}}
{{- $names = concat $names (list $host $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.%s" $inNamespace $.root.Values.clusterDomain)) -}}
{{- end -}}
{{- $ingress := .root.Values.console.ingress -}}
{{- $names = concat $names (ternary (list $ingress.hostname) list $ingress.enabled) -}}
{{- join "," (concat $names .root.Values.allowedHosts | uniq) -}}
{{- end -}}

{{- define "magnetar.selector" -}}
app.kubernetes.io/name: {{ include "magnetar.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ (index .root.Values .key).component }}
{{- end -}}

{{/* Labels of what belongs to no component, or (with "key") to one. */}}
{{- define "magnetar.labels" -}}
{{- if .key -}}
{{ include "magnetar.selector" . }}
{{- else -}}
app.kubernetes.io/name: {{ include "magnetar.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: magnetar
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The head of an object: magnetar.labels, "name", "annotations", and "more" labels. */}}
{{- define "magnetar.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "magnetar.labels" . | nindent 2 }}
  {{- with .more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* name:tag or name@digest; images are named by component, but for the bookie's. */}}
{{- define "magnetar.image" -}}
{{- $image := index .root.Values.images (ternary "bookie" .key (eq .key "bookkeeper")) -}}
{{- $tag := coalesce $image.tag .root.Values.defaultMagnetarImageTag .root.Chart.AppVersion -}}
{{- $repository := default (printf "%s%s" .root.Values.defaultMagnetarImageRepository (ternary "-zookeeper" "" (eq .key "zookeeper"))) $image.repository -}}
{{- $digest := trimPrefix "@" $tag -}}
image: {{ ternary (printf "%s@%s" $repository $digest) (printf "%s:%s" $repository $tag) (hasPrefix "sha256:" $digest) | quote }}
imagePullPolicy: {{ default .root.Values.defaultPullPolicy $image.pullPolicy }}
{{- end -}}

{{/* host:port,host:port of ZooKeeper's servers. */}}
{{- define "magnetar.zookeepers" -}}
{{- if .Values.pulsar_metadata.userProvidedZookeepers -}}
{{- .Values.pulsar_metadata.userProvidedZookeepers -}}
{{- else -}}
{{- $zookeeper := dict "root" . "key" "zookeeper" -}}
{{- $port := ternary .Values.zookeeper.ports.clientTls .Values.zookeeper.ports.client (eq (include "magnetar.tls" $zookeeper) "true") -}}
{{- $servers := list -}}
{{- range $ordinal := until (int .Values.zookeeper.replicaCount) -}}
{{- $servers = append $servers (printf "%s-%d.%s:%d" (include "magnetar.component" $zookeeper) $ordinal (include "magnetar.podDomain" $zookeeper) (int $port)) -}}
{{- end -}}
{{- join "," $servers -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.metadataUrl" -}}
{{- printf "zk:%s%s" (include "magnetar.zookeepers" .) .Values.metadataPrefix -}}
{{- end -}}

{{/* "true" where the port of a component speaks TLS. */}}
{{- define "magnetar.tls" -}}
{{- $tls := index .root.Values.tls (ternary "bookie" .key (eq .key "bookkeeper")) -}}
{{- and .root.Values.tls.enabled $tls.enabled -}}
{{- end -}}

{{/* "true" where a component has a certificate: for its port, or as a client of bookies or ZooKeeper. */}}
{{- define "magnetar.hasCertificate" -}}
{{- $own := eq (include "magnetar.tls" .) "true" -}}
{{- $bookies := eq (include "magnetar.tls" (dict "root" .root "key" "bookkeeper")) "true" -}}
{{- $zookeeper := eq (include "magnetar.tls" (dict "root" .root "key" "zookeeper")) "true" -}}
{{- $brokers := eq (include "magnetar.tls" (dict "root" .root "key" "broker")) "true" -}}
{{- if eq .key "standalone" -}}
{{- $own -}}
{{- else if eq .key "zookeeper" -}}
{{- $zookeeper -}}
{{- else if eq .key "toolset" -}}
{{- if .root.Values.standalone.enabled -}}
{{- eq (include "magnetar.tls" (dict "root" .root "key" "standalone")) "true" -}}
{{- else -}}
{{- or $brokers $bookies $zookeeper -}}
{{- end -}}
{{- else -}}
{{- or $own $bookies $zookeeper -}}
{{- end -}}
{{- end -}}

{{- define "magnetar.certificateSecret" -}}
{{- $tls := index .root.Values.tls (ternary "bookie" .key (eq .key "bookkeeper")) -}}
{{- default (printf "%s-%s" .root.Release.Name $tls.cert_name) $tls.secretName -}}
{{- end -}}

{{/* "true" where clients prove with tokens who they are. */}}
{{- define "magnetar.jwt" -}}
{{- and .Values.auth.authentication.enabled .Values.auth.authentication.jwt.enabled -}}
{{- end -}}

{{- define "magnetar.bookieTokens" -}}
{{- and .Values.auth.bookkeeper.enabled (not .Values.standalone.enabled) -}}
{{- end -}}

{{- define "magnetar.keySecret" -}}
{{- $jwt := .Values.auth.authentication.jwt -}}
{{- $kind := ternary "symmetric" "asymmetric" $jwt.usingSecretKey -}}
{{- default (printf "%s-token-%s-key" .Release.Name $kind) $jwt.keySecretName -}}
{{- end -}}

{{/* (dict "root" $ "role" "admin") */}}
{{- define "magnetar.tokenSecret" -}}
{{- printf "%s-%s" (default (printf "%s-token" .root.Release.Name) .root.Values.auth.authentication.jwt.tokenSecretPrefix) .role -}}
{{- end -}}

{{/* How servers learn their zone: podLabel, node or none. */}}
{{- define "magnetar.zoneFrom" -}}
{{- $from := .Values.topology.zoneFrom -}}
{{- if .Values.topology.zone -}}
none
{{- else if ne $from "auto" -}}
{{- $from -}}
{{- else if or (semverCompare ">=1.35.0-0" .Capabilities.KubeVersion.Version) (not .Values.rbac.enabled) -}}
podLabel
{{- else -}}
node
{{- end -}}
{{- end -}}

{{/* "true" where a component asks the API server for its node. */}}
{{- define "magnetar.asksForNode" -}}
{{- and (has .key (list "bookkeeper" "broker" "autorecovery")) (eq (include "magnetar.zoneFrom" .root) "node") -}}
{{- end -}}
