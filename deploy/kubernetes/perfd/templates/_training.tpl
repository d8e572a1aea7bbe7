{{/* The pod of a training job with perfd's sidecar in it; `restartPolicy` is the caller's matter. Takes the root. */}}
{{- define "perfd.trainingPodMetadata" -}}
labels:
  # The NetworkPolicy of the aggregator lets such pods in.
  perfd-agent: sidecar
annotations:
  checksum/perfd: {{ include "perfd.sidecarConfig" . | sha256sum }}
{{- end -}}

{{- define "perfd.sidecarConfig" -}}
{{- $log := dict "options" (dict "paths" (list "/run/perfd/train.log")) -}}
{{- $hook := dict "options" (dict "socket" "/run/perfd/hook.sock") -}}
{{- $nccl := dict "options" (dict "flight_recorder_prefix" "/run/perfd/nccl_trace_rank_") -}}
{{- if not .Values.training.nccl -}}
{{- $nccl = dict "enabled" false -}}
{{- end -}}
{{- $collectors := dict "training_log" $log "hook" $hook "nccl" $nccl -}}
{{- $config := dict "capture" (dict "enabled" false) "collectors" $collectors -}}
{{- /* On the node's network two pods would want one port. */ -}}
{{- $_ := set $config "listen" (.Values.training.hostNetwork | ternary nil "0.0.0.0:9462") -}}
{{- include "perfd.agentConfig" (dict "root" . "config" (mergeOverwrite $config .Values.sidecar.config)) -}}
{{- end -}}

{{- define "perfd.trainingPodSpec" -}}
{{- $training := .Values.training -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
# The sidecar finds the ranks by their processes.
shareProcessNamespace: true
{{- if $training.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext:
  runAsUser: {{ int $training.runAsUser }}
  runAsGroup: {{ int $training.runAsUser }}
  runAsNonRoot: {{ ne (int $training.runAsUser) 0 }}
  seccompProfile: {type: RuntimeDefault}
{{- with include "perfd.placement" $training }}
{{ . | trim }}
{{- end }}
initContainers:
  - name: perfd-files
    image: {{ include "perfd.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command:
      - cp
      - /opt/perfd/lib/perfd-relay
      {{- if $training.nccl }}
      - /opt/perfd/lib/libnccl-profiler-perfd.so
      {{- end }}
      - /run/perfd/
    resources: {{- toYaml .Values.sidecar.resources | nindent 6 }}
    securityContext: {{- include "perfd.containerSecurityContext" . | nindent 6 }}
    volumeMounts:
      - {name: perfd, mountPath: /run/perfd}
  # A native sidecar: it starts before the training, ends after it, and its failure is not the job's. It has no
  # startup or readiness probe, so the training never waits for it.
  - name: perfd
    restartPolicy: Always
    image: {{ include "perfd.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [agent, --config, /etc/perfd/agent.yaml, --node, $(PERFD_NODE), --job, {{ $training.name }}, --job-end, /run/perfd/end, --log-json]
    env: {{- include "perfd.agentEnv" (list . .Values.sidecar.nodeNameFrom) | nindent 6 }}
      {{- include "perfd.namespaceEnv" . | nindent 6 }}
    {{- if not $training.hostNetwork }}
    ports:
      - {name: metrics, containerPort: 9462}
    {{- include "perfd.agentProbe" . | nindent 4 }}
    {{- end }}
    resources: {{- toYaml .Values.sidecar.resources | nindent 6 }}
    securityContext: {{- include "perfd.containerSecurityContext" . | nindent 6 }}
    volumeMounts:
      - {name: perfd, mountPath: /run/perfd}
      - {name: perfd-state, mountPath: /var/lib/perfd}
      - {name: perfd-config, mountPath: /etc/perfd, readOnly: true}
      {{- if $training.nccl }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
      {{- if .Values.tls.agentSecret }}
      - {name: perfd-tls, mountPath: /etc/perfd-tls, readOnly: true}
      {{- end }}
containers:
  # The training operator looks for this name.
  - name: pytorch
    image: {{ required "training.image is missing: name the image of your training." $training.image }}
    # Copies the output for the sidecar and reports the exit code; signals and the exit code stay the training's own.
    command: [/run/perfd/perfd-relay, --log, /run/perfd/train.log, --end, /run/perfd/end, --]
    args: {{- toYaml $training.command | nindent 6 }}
    env:
      # On the node's network the host name is not the pod's.
      - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      - {name: PERFD_HOOK_SOCKET, value: /run/perfd/hook.sock}
      {{- if $training.nccl }}
      - {name: NCCL_PROFILER_PLUGIN, value: /run/perfd/libnccl-profiler-perfd.so}
      - {name: TORCH_NCCL_DEBUG_INFO_TEMP_FILE, value: /run/perfd/nccl_trace_rank_}
      {{- end }}
      - {name: NNODES, value: {{ $training.nodes | toString | quote }}}
      - {name: NPROC_PER_NODE, value: {{ max 1 (int $training.gpusPerNode) | toString | quote }}}
      {{- with include "perfd.trainingMaster" . }}
      - {name: MASTER_ADDR, value: {{ . }}}
      - {name: MASTER_PORT, value: "29500"}
      {{- end }}
      {{- with $training.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- $gpus := ternary (dict "limits" (dict "nvidia.com/gpu" (int $training.gpusPerNode))) dict (gt (int $training.gpusPerNode) 0) }}
    {{- with mergeOverwrite $gpus $training.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $training.securityContext }}
    securityContext: {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: perfd, mountPath: /run/perfd}
      - {name: shm, mountPath: /dev/shm}
      {{- with $training.volumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  # The training's log and the sockets between training and sidecar.
  - name: perfd
    emptyDir: {}
  - name: perfd-state
    emptyDir: {}
  - name: perfd-config
    configMap: {name: {{ $training.name }}-perfd}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ $training.shmSize }}}
  {{- with .Values.tls.agentSecret }}
  - name: perfd-tls
    secret: {secretName: {{ . }}, defaultMode: 0444}
  {{- end }}
  {{- with $training.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Where rank 0 is. The training operator says it itself. */}}
{{- define "perfd.trainingMaster" -}}
{{- $name := .Values.training.name -}}
{{- if eq .Values.training.kind "Job" -}}
{{- printf "%s-0.%s" $name $name -}}
{{- else if eq .Values.training.kind "JobSet" -}}
{{- printf "%s-node-0-0.%s" $name $name -}}
{{- end -}}
{{- end -}}

{{/* A pod for each node, each knowing its number as JOB_COMPLETION_INDEX. */}}
{{- define "perfd.trainingJobSpec" -}}
parallelism: {{ int .Values.training.nodes }}
completions: {{ int .Values.training.nodes }}
completionMode: Indexed
backoffLimit: 0
template:
  metadata: {{- include "perfd.trainingPodMetadata" . | nindent 4 }}
  spec:
    restartPolicy: Never
    {{- if eq .Values.training.kind "Job" }}
    subdomain: {{ .Values.training.name }}
    {{- end }}
    {{- include "perfd.trainingPodSpec" . | nindent 4 }}
{{- end -}}
