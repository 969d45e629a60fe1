{{/*
A setting has one value. The environment of a server is what the chart says, configData and extraEnvs; case and
punctuation of keys don't count, so two variables may be the same setting: a server would end there, or ignore one.
*/}}

{{/* The list of a component's variables: the chart's own, of which extraEnvs replaces what it names, and its others. */}}
{{- define "magnetar.env" -}}
{{- $own := fromYamlArray (include (printf "magnetar.env.%s" .key) .) -}}
{{- $extra := dict -}}
{{- range (index .root.Values .key).extraEnvs -}}
{{- $setting := include "magnetar.settingOf" .name -}}
{{- with index $extra $setting -}}
{{- fail (printf "%s.extraEnvs: %s and %s are the same" $.key .name (index $extra $setting).name) -}}
{{- end -}}
{{- $_ := set $extra $setting . -}}
{{- end -}}
{{- include "magnetar.checkConfigData" (merge (dict "own" $own "extra" $extra) .) -}}
{{- $all := list -}}
{{- range $own -}}
{{- $setting := include "magnetar.settingOf" .name -}}
{{- $all = append $all (default . (index $extra $setting)) -}}
{{- $extra = omit $extra $setting -}}
{{- end -}}
{{- range (index .root.Values .key).extraEnvs -}}
{{- if hasKey $extra (include "magnetar.settingOf" .name) -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Ends the rendering where configData and "own" or "extra" say the same; add "own": a list, "extra": by settingOf. */}}
{{- define "magnetar.checkConfigData" -}}
{{- $own := dict -}}
{{- range .own -}}
{{- $_ := set $own (include "magnetar.settingOf" .name) .name -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $key, $_ := ternary dict (fromYaml (include "magnetar.settings" .)) (eq .key "zookeeper") -}}
{{- $where := printf "%s.configData.%s" $.key $key -}}
{{- if regexMatch "^(PULSAR|BOOKIE|BROKER|STANDALONE)_(MEM|GC|GC_LOG|EXTRA_OPTS)$" $key -}}
{{- fail (printf "%s: no Java is there to be told; memory is %s.resources, and caches are settings" $where $.key) -}}
{{- end -}}
{{- $variable := printf "MAGNETAR_%s" $key -}}
{{- range $setting := list (include "magnetar.settingOf" $variable) (include "magnetar.settingOf" (regexReplaceAll "^MAGNETAR_(BOOKIE|AUTORECOVERY)_" $variable "MAGNETAR_")) | uniq -}}
{{- with index $seen $setting -}}
{{- fail (printf "%s: the same as %s" $where .) -}}
{{- end -}}
{{- $_ := set $seen $setting $key -}}
{{- with index $own $setting -}}
{{- fail (printf "%s: the chart sets %s by other values; to overrule it name it in %s.extraEnvs" $where . $.key) -}}
{{- end -}}
{{- with index $.extra $setting -}}
{{- if ne .name $variable -}}
{{- fail (printf "%s: the same as %s in %s.extraEnvs" $where .name $.key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a variable is about, to compare: of settings without case, punctuation and other names for the same. */}}
{{- define "magnetar.settingOf" -}}
{{- if regexMatch "^(MAGNETAR|PULSAR_PREFIX)_" . -}}
{{- $setting := regexReplaceAll "[^a-z0-9]" (regexReplaceAll "^(MAGNETAR|PULSAR_PREFIX)_" . "" | lower) "" -}}
{{- $same := dict "metadataserviceuri" "metadatastoreurl" "zkservers" "metadatastoreurl" "zookeeperservers" "metadatastoreurl" "journaldirectory" "journaldirectories" "ledgerdirectory" "ledgerdirectories" -}}
setting {{ default $setting (index $same $setting) }}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}
