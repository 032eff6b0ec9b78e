{{- define "berth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "berth.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "berth.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects. It includes the namespace, so that two releases with the same name do not share them. */}}
{{- define "berth.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "berth.fullname" .) }}
{{- end }}

{{- define "berth.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "berth.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "berth.selectorLabels" -}}
app.kubernetes.io/name: {{ include "berth.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "berth.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "berth.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: scheduler
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "berth.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "berth.leaseNamespace" -}}
{{- default .Release.Namespace .Values.config.leaderElection.namespace }}
{{- end }}

{{- define "berth.metricsReader" -}}
{{- printf "%s-metrics-reader" (include "berth.clusterName" .) }}
{{- end }}

{{/* DNS name of the Service inside the cluster. */}}
{{- define "berth.serviceName" -}}
{{- printf "%s.%s.svc" (include "berth.fullname" .) .Release.Namespace }}
{{- end }}

{{/* "true" if cert-manager issues the HTTPS certificate; otherwise berth does, or it comes from files. */}}
{{- define "berth.certManager" -}}
{{- $wanted := .Values.guard.certManager.enabled | toString }}
{{- $there := .Capabilities.APIVersions.Has "cert-manager.io/v1" }}
{{- if and (or .Values.guard.enabled .Values.apply.webhook.enabled) .Values.config.serving.address (not .Values.config.serving.certFile) (or (eq $wanted "true") (and (eq $wanted "auto") $there)) }}
{{- "true" }}
{{- end }}
{{- end }}

{{/* Secret for the certificate that berth issues; empty if berth issues none. */}}
{{- define "berth.ownSecret" -}}
{{- $serving := .Values.config.serving }}
{{- if and $serving.address (not $serving.certFile) (ne (include "berth.certManager" .) "true") }}
{{- default (printf "%s-tls" (include "berth.fullname" .)) $serving.secret }}
{{- end }}
{{- end }}

{{- define "berth.certManagerSecret" -}}
{{- printf "%s-cert-manager-tls" (include "berth.fullname" .) }}
{{- end }}

{{/* Secret for the path of the webhooks; empty if there are none. */}}
{{- define "berth.webhookSecret" -}}
{{- if or .Values.guard.enabled .Values.apply.webhook.enabled }}
{{- default (printf "%s-webhooks" (include "berth.fullname" .)) .Values.config.serving.webhookSecret }}
{{- end }}
{{- end }}

{{/* "true" if no Secret of the release's namespace has the CA of the HTTPS certificate. */}}
{{- define "berth.caIsElsewhere" -}}
{{- if or (and (include "berth.ownSecret" .) (ne (include "berth.leaseNamespace" .) .Release.Namespace)) .Values.config.serving.certFile }}
{{- "true" }}
{{- end }}
{{- end }}

{{/* TLS settings of a monitor: the CA in the Secret of the certificate. */}}
{{- define "berth.monitorTls" -}}
serverName: {{ include "berth.serviceName" . }}
ca:
  secret:
    name: {{ default (include "berth.certManagerSecret" .) (include "berth.ownSecret" .) }}
    key: ca.crt
{{- end }}

{{/* ValidatingWebhookConfiguration that berth writes the path, and its CA if it has one, into; empty if there is none. */}}
{{- define "berth.ownWebhooks" -}}
{{- $default := ternary (include "berth.clusterName" .) "" .Values.guard.enabled }}
{{- default $default .Values.config.serving.webhookConfiguration }}
{{- end }}

{{/* MutatingWebhookConfiguration that berth writes the path, and its CA if it has one, into; empty if there is none. */}}
{{- define "berth.ownMutatingWebhooks" -}}
{{- $default := ternary (include "berth.clusterName" .) "" .Values.apply.webhook.enabled }}
{{- default $default .Values.config.serving.mutatingWebhookConfiguration }}
{{- end }}

{{/* berth's configuration file: .Values.config, with settings derived from other values. */}}
{{- define "berth.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $serving := $config.serving }}
{{- if and $serving.address (not $serving.names) }}
{{- $_ := set $serving "names" (list (include "berth.serviceName" .) (printf "%s.%s" (include "berth.fullname" .) .Release.Namespace) (include "berth.fullname" .)) }}
{{- end }}
{{- if eq (include "berth.certManager" .) "true" }}
{{- $_ := set $serving "certFile" "/etc/berth-tls/tls.crt" }}
{{- $_ := set $serving "keyFile" "/etc/berth-tls/tls.key" }}
{{- $_ := set $serving "caFile" "/etc/berth-tls/ca.crt" }}
{{- end }}
{{- $_ := set $serving "secret" (include "berth.ownSecret" .) }}
{{- $_ := set $serving "webhookSecret" (include "berth.webhookSecret" .) }}
{{- $_ := set $serving "webhookConfiguration" (include "berth.ownWebhooks" .) }}
{{- $_ := set $serving "mutatingWebhookConfiguration" (include "berth.ownMutatingWebhooks" .) }}
{{- if .Values.extender.enabled }}
{{- $_ := set $config.extender "enabled" true }}
{{- if .Values.extender.clientCaSecret }}
{{- $_ := set $serving "clientCaFile" "/etc/berth-clients/ca.crt" }}
{{- end }}
{{- end }}
{{- if .Values.guard.enabled }}
{{- $_ := set $config.guard "enabled" true }}
{{- $_ := set $config.guard "failurePolicy" .Values.guard.failurePolicy }}
{{- end }}
{{- if .Values.recommender.enabled }}
{{- $_ := set $config.recommender "enabled" true }}
{{- end }}
{{- if .Values.recommender.credentialsSecret }}
{{- $prometheus := required "recommender.credentialsSecret needs config.recommender.prometheus" $config.recommender.prometheus }}
{{- if $prometheus.basicAuth }}
{{- $_ := set $prometheus.basicAuth "passwordFile" "/etc/berth-prometheus/password" }}
{{- else }}
{{- $_ := set $prometheus "bearerTokenFile" "/etc/berth-prometheus/token" }}
{{- end }}
{{- end }}
{{- if .Values.apply.webhook.enabled }}
{{- $_ := set $config.recommender.apply "webhook" true }}
{{- end }}
{{- if .Values.apply.updater.enabled }}
{{- $_ := set $config.recommender.apply "updater" true }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Common part of the guard's webhooks. */}}
{{- define "berth.webhook" -}}
clientConfig:
  # berth writes the path, whose end is a secret; berth or cert-manager writes the caBundle.
  service:
    name: {{ include "berth.fullname" . }}
    namespace: {{ .Release.Namespace }}
    port: {{ .Values.service.port }}
# With guard.failurePolicy: Fail, berth sets that while it reviews.
failurePolicy: Ignore
timeoutSeconds: {{ .Values.guard.timeoutSeconds }}
matchPolicy: Equivalent
# An allowed binding reserves resources in the ledger.
sideEffects: NoneOnDryRun
admissionReviewVersions: [v1]
namespaceSelector:
  {{- include "berth.namespaces" (list . .Values.guard (include "berth.nodeNamespaces" . | splitList " ")) | nindent 2 }}
{{- end }}

{{/* Usual namespaces of network plugins and storage drivers, without which a new node does not become ready. */}}
{{- define "berth.nodeNamespaces" -}}
calico-apiserver calico-system cilium kube-flannel longhorn-system openebs rook-ceph tigera-operator
{{- end }}

{{/*
Namespaces of a webhook, from its values and a list of more: those of namespaceSelector, and never those without which the cluster and
berth itself could not start.
*/}}
{{- define "berth.namespaces" -}}
{{- $root := index . 0 }}
{{- $webhook := index . 1 }}
{{- $exempt := concat (list "kube-system" $root.Release.Namespace) (index . 2) $webhook.exemptNamespaces | uniq }}
{{- $exemption := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $exempt }}
{{- $selector := deepCopy ($webhook.namespaceSelector | default dict) }}
{{- $_ := set $selector "matchExpressions" (append ($selector.matchExpressions | default list) $exemption) }}
{{- toYaml $selector }}
{{- end }}
