{{/* Configuration of the agent that is added to pods: the node's agent reads their output. Takes the root. */}}
{{- define "perfd.injectedConfig" -}}
{{- $hook := dict "options" (dict "socket" "/run/perfd/hook.sock") -}}
{{- $nccl := dict "options" (dict "directory" "/run/perfd" "flight_recorder_prefix" "/run/perfd/nccl_trace_rank_") -}}
{{- /* The node's own counters are not the pod's matter, and its network is not the node's. */ -}}
{{- $collectors := dict "hook" $hook "nccl" $nccl "host" (dict "enabled" false) -}}
{{- $config := dict "capture" (dict "enabled" false) "collectors" $collectors "listen" nil -}}
{{- include "perfd.agentConfig" (dict "root" . "config" (mergeOverwrite $config .Values.injection.config)) -}}
{{- end -}}

{{/* What is added to each container's environment: what the plugin, the hook and PyTorch need. */}}
{{- define "perfd.injectedEnv" -}}
NCCL_PROFILER_PLUGIN: /run/perfd/libnccl-profiler-perfd.so
PERFD_NCCL_DIR: /run/perfd
PERFD_HOOK_SOCKET: /run/perfd/hook.sock
TORCH_NCCL_DEBUG_INFO_TEMP_FILE: /run/perfd/nccl_trace_rank_
{{- end -}}

{{/* The init containers that are added, in order: files for the pod, and the agent. `perfd-files` also writes the
     agent's configuration, since a pod cannot mount a ConfigMap of another namespace. */}}
{{- define "perfd.injectedContainers" -}}
{{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") -}}
- name: perfd-files
  image: {{ include "perfd.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c, 'cp /opt/perfd/lib/libnccl-profiler-perfd.so /run/perfd/ && printf %s "$PERFD_CONFIG" >/run/perfd/agent.yaml']
  env:
    - name: PERFD_CONFIG
      value: {{ include "perfd.injectedConfig" . | fromYaml | toJson | quote }}
  resources: {{- toYaml .Values.injection.resources | nindent 4 }}
  securityContext: {{- toYaml $security | nindent 4 }}
  volumeMounts:
    - {name: perfd, mountPath: /run/perfd}
- name: perfd-agent
  restartPolicy: Always
  image: {{ include "perfd.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [agent, --config, /run/perfd/agent.yaml, --node, $(PERFD_NODE), --job, $(PERFD_JOB), --log-json]
  env:
    {{- include "perfd.agentEnv" (list . "metadata.name") | nindent 4 }}
    - {name: PERFD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: PERFD_JOB, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['perfd/job']"}}}
  resources: {{- toYaml .Values.injection.resources | nindent 4 }}
  securityContext: {{- toYaml $security | nindent 4 }}
  volumeMounts:
    - {name: perfd, mountPath: /run/perfd}
    - {name: perfd-state, mountPath: /var/lib/perfd}
    {{- if .Values.tls.agentSecret }}
    - {name: perfd-tls, mountPath: /etc/perfd-tls, readOnly: true}
    {{- end }}
{{- end -}}

{{/* The volumes that are added. A Secret that the namespace lacks does not keep the pod from starting. */}}
{{- define "perfd.injectedVolumes" -}}
- name: perfd
  emptyDir: {medium: Memory}
- name: perfd-state
  emptyDir: {}
{{- with .Values.tls.agentSecret }}
- name: perfd-tls
  secret: {secretName: {{ . }}, defaultMode: 0444, optional: true}
{{- end }}
{{- end -}}

{{/* A value as CEL writes it, of which all is `dyn`, since lists and maps mix types. */}}
{{- define "perfd.cel" -}}
{{- if kindIs "map" . -}}
dyn({ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ $key | toJson }}: {{ include "perfd.cel" (get $ $key) }}{{ end -}} })
{{- else if kindIs "slice" . -}}
dyn([ {{- range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "perfd.cel" $value }}{{ end -}} ])
{{- else -}}
dyn({{ . | toJson }})
{{- end -}}
{{- end -}}

{{/* Namespaces that nothing is ever added in: the cluster's, and perfd's. */}}
{{- define "perfd.injectionNamespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [kube-system, kube-node-lease, kube-public, {{ .Release.Namespace }}]
{{- end -}}

{{/* Labels that name a pod's job, the outermost owner first; the collector `pods` has the same. */}}
{{- define "perfd.jobLabels" -}}
- perfd/job
- jobset.sigs.k8s.io/jobset-name
- training.kubeflow.org/job-name
- leaderworkerset.sigs.k8s.io/name
- ray.io/originated-from-cr-name
- ray.io/cluster
- volcano.sh/job-name
- batch.kubernetes.io/job-name
- job-name
{{- end -}}
