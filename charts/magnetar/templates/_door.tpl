{{/* Ports for clients, of broker and standalone; take "isTls" and "isPlain" as well. */}}

{{- define "magnetar.doorPorts" -}}
{{- $ports := (index .root.Values .key).ports -}}
{{- if .isPlain }}
- {name: http, port: {{ $ports.http }}, targetPort: http}
- {name: pulsar, port: {{ $ports.pulsar }}, targetPort: pulsar}
{{- end }}
{{- if .isTls }}
- {name: https, port: {{ $ports.https }}, targetPort: https}
- {name: pulsarssl, port: {{ $ports.pulsarssl }}, targetPort: pulsarssl}
{{- end }}
{{- end -}}

{{- define "magnetar.doorContainerPorts" -}}
{{- $ports := (index .root.Values .key).ports -}}
{{- if .isPlain }}
- {name: http, containerPort: {{ $ports.http }}}
- {name: pulsar, containerPort: {{ $ports.pulsar }}}
{{- end }}
{{- if .isTls }}
- {name: https, containerPort: {{ $ports.https }}}
- {name: pulsarssl, containerPort: {{ $ports.pulsarssl }}}
{{- end }}
{{- end -}}

{{/* Addresses of a broker for pods, and for clients outside. */}}
{{- define "magnetar.listeners" -}}
{{- $c := .root.Values.broker -}}
{{- $listeners := list -}}
{{- $hosts := dict "internal" (include "magnetar.podDomain" .) $c.external.listenerName $c.external.domain -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{- $isPlain := or (not $isTls) .root.Values.tls.broker.allowPlain -}}
{{- range $name := list "internal" $c.external.listenerName -}}
{{- $host := printf "$(POD_NAME).%s" (index $hosts $name) -}}
{{- if $isPlain -}}
{{- $listeners = append $listeners (printf "%s:pulsar://%s:%d" $name $host (int $c.ports.pulsar)) -}}
{{- $listeners = append $listeners (printf "%s:http://%s:%d" $name $host (int $c.ports.http)) -}}
{{- end -}}
{{- if $isTls -}}
{{- $listeners = append $listeners (printf "%s:pulsar+ssl://%s:%d" $name $host (int $c.ports.pulsarssl)) -}}
{{- $listeners = append $listeners (printf "%s:https://%s:%d" $name $host (int $c.ports.https)) -}}
{{- end -}}
{{- end -}}
{{- join "," $listeners -}}
{{- end -}}

{{/* Where clients in the cluster begin. */}}
{{- define "magnetar.serviceHost" -}}
{{- printf "%s.%s.svc.%s" (include "magnetar.component" .) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{- define "magnetar.serviceUrl" -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{- $ports := (index .root.Values .key).ports -}}
{{- printf "%s://%s:%d" (ternary "pulsar+ssl" "pulsar" $isTls) (include "magnetar.serviceHost" .) (ternary $ports.pulsarssl $ports.pulsar $isTls | int) -}}
{{- end -}}

{{- define "magnetar.adminUrl" -}}
{{- $isTls := eq (include "magnetar.tls" .) "true" -}}
{{- $ports := (index .root.Values .key).ports -}}
{{- printf "%s://%s:%d" (ternary "https" "http" $isTls) (include "magnetar.serviceHost" .) (ternary $ports.https $ports.http $isTls | int) -}}
{{- end -}}
