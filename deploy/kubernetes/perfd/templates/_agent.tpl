{{/* The agent's configuration. Takes the root as `root`, and what differs between the two kinds of agent as `config`. */}}
{{- define "perfd.agentConfig" -}}
{{- $uplink := dict -}}
{{- if not (dig "uplink" "nats" false .config) -}}
{{- $_ := set $uplink "address" (include "perfd.aggregatorAddress" .root) -}}
{{- end -}}
{{- with .root.Values.tls -}}
{{- if not $uplink.address -}}
{{- else if .agentSecret -}}
{{- $tls := dict "ca" "/etc/perfd-tls/ca.crt" -}}
{{- if .mutual -}}
{{- $tls = merge $tls (dict "certificate" "/etc/perfd-tls/tls.crt" "key" "/etc/perfd-tls/tls.key") -}}
{{- end -}}
{{- $_ := set $uplink "tls" $tls -}}
{{- else -}}
{{- $_ := set $uplink "allow_plaintext" true -}}
{{- end -}}
{{- end -}}
{{- $fixed := dict "uplink" $uplink "spool" (dict "directory" "/var/lib/perfd/spool") -}}
{{- toYaml (mergeOverwrite (deepCopy .config) $fixed) -}}
{{- end -}}

{{/* What this cluster is called, and the node, from the named field. Takes the root, and the field. */}}
{{- define "perfd.agentEnv" -}}
- name: PERFD_NODE
  valueFrom: {fieldRef: {fieldPath: {{ last . }}}}
{{- with (first .).Values.cluster }}
- name: PERFD_CLUSTER
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Jobs of one name in two namespaces are two jobs. */}}
{{- define "perfd.namespaceEnv" -}}
- name: PERFD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{/* The kubelet asks over the network, so the agent listens there. It is alive without an aggregator too. */}}
{{- define "perfd.agentProbe" -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* Reading root's logs of pods, and other users' processes. Capabilities count for root only: Kubernetes has no
     ambient ones. */}}
{{- define "perfd.rootSecurityContext" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if .Values.agent.features.ranks }}
  add: [SYS_PTRACE, DAC_READ_SEARCH]
  {{- end }}
{{- end -}}
