{{/* Upgrades that are refused; "was": a StatefulSet of this release, as it is. docs/guides/kubernetes.md, "Other values". */}}

{{- define "magnetar.checkChange" -}}
{{- $name := .was.metadata.name -}}
{{- $c := index .root.Values .key -}}
{{- $claims := list -}}
{{- if hasKey $c "volumes" -}}
{{- $claims = get (include "magnetar.claims" . | fromYaml) "volumeClaimTemplates" | default list -}}
{{- end -}}
{{- $were := default list .was.spec.volumeClaimTemplates -}}
{{- if ne (include "magnetar.claimsText" (dict "claims" $were "inBytes" true)) (include "magnetar.claimsText" (dict "claims" $claims "inBytes" true)) -}}
{{- fail (printf "%s.volumes: claims of the StatefulSet %s can't change from [%s] to [%s]; docs/guides/kubernetes.md, \"Other values\", tells how volumes grow" .key $name (include "magnetar.claimsText" (dict "claims" $were)) (include "magnetar.claimsText" (dict "claims" $claims))) -}}
{{- end -}}
{{- if ne (toJson .was.spec.selector.matchLabels) (include "magnetar.selector" . | fromYaml | toJson) -}}
{{- fail (printf "nameOverride can't change: the StatefulSet %s finds its pods by it" $name) -}}
{{- end -}}
{{- $policy := default "Parallel" (get $c "podManagementPolicy") -}}
{{- if ne .was.spec.podManagementPolicy $policy -}}
{{- fail (printf "%s.podManagementPolicy can't change from %s to %s: delete the StatefulSet %s with --cascade=orphan first, its pods stay" .key .was.spec.podManagementPolicy $policy $name) -}}
{{- end -}}
{{- if and (eq .key "zookeeper") (gt (int .was.spec.replicas) 0) -}}
{{- $wasTls := false -}}
{{- range (first .was.spec.template.spec.containers).ports -}}
{{- $wasTls = or $wasTls (eq .name "client-tls") -}}
{{- end -}}
{{- if ne (toString $wasTls) (include "magnetar.tls" .) -}}
{{- fail (printf "tls.zookeeper can't be switched while servers run: one with TLS and one without are no ensemble, so the first new pod would never be ready. Scale the StatefulSet %s to 0 first; docs/guides/kubernetes.md, \"TLS and tokens in a running cluster\"" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a StatefulSet with claims that the values have no place for. */}}
{{- define "magnetar.checkEnd" -}}
{{- $name := .was.metadata.name -}}
{{- $component := get .was.metadata.labels "app.kubernetes.io/component" -}}
{{- $values := .root.Values -}}
{{- $stays := printf "what %s has stored would stay behind. Install another release, or uninstall this one first" $name -}}
{{- if ne (eq $component $values.standalone.component) $values.standalone.enabled -}}
{{- fail (printf "standalone.enabled can't change: %s" $stays) -}}
{{- end -}}
{{- range $key := fromYamlArray (include "magnetar.enabled" .root) -}}
{{- if eq $component (index $values $key).component -}}
{{- fail (printf "names can't change (nameOverride, fullnameOverride): %s" $stays) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A list of claim templates on one line; "inBytes": to be compared, since the API server writes 1024Mi as 1Gi. */}}
{{- define "magnetar.claimsText" -}}
{{- $inBytes := .inBytes -}}
{{- $texts := list -}}
{{- range .claims -}}
{{- $size := toString .spec.resources.requests.storage -}}
{{- if $inBytes -}}
{{- $size = include "magnetar.bytes" $size -}}
{{- end -}}
{{- $text := printf "%s %s %s" .metadata.name $size (get .spec "storageClassName") -}}
{{- with get .spec "selector" -}}
{{- $text = printf "%s %s" $text (toJson .) -}}
{{- end -}}
{{- $texts = append $texts (trim $text) -}}
{{- end -}}
{{- join ", " $texts -}}
{{- end -}}

{{/* A quantity as a number. */}}
{{- define "magnetar.bytes" -}}
{{- $units := dict "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- mulf (trimSuffix $unit . | float64) (get $units $unit) | printf "%.0f" -}}
{{- end -}}
