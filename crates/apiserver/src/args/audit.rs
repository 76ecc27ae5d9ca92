//! Flags of the audit.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use crate::{AuditBatchConfig, AuditConfig, AuditLogConfig, AuditLogFormat, AuditMode};
use crate::{AuditRotation, AuditTruncateConfig, AuditWebhookConfig};

const MEGABYTE: u64 = 1 << 20;

/// The forms of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// An object a line.
    Json,
    /// A line of text an event.
    Legacy,
}

/// When events are handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// From a queue.
    Batch,
    /// Before the request goes on.
    Blocking,
    /// The same, and no request without its event.
    BlockingStrict,
}

/// Flags of the audit.
#[derive(Debug, Args)]
#[command(next_help_heading = "Audit")]
pub struct AuditArgs {
    /// The policy (audit.k8s.io/v1) that says what is recorded; without it nothing is
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub audit_policy_file: String,
    /// The file that events are written to; '-' is the standard output
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub audit_log_path: String,
    /// After how many days old files are removed; 0 is never
    #[arg(long, value_name = "DAYS", default_value_t = 366)]
    pub audit_log_maxage: u32,
    /// How many old files are kept; 0 is all
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// The size in MiB from which on a file is replaced; 0 is none
    #[arg(long, value_name = "MIB", default_value_t = 100)]
    pub audit_log_maxsize: u32,
    /// How events are written
    #[arg(long, value_name = "FORMAT", default_value = "json", value_enum)]
    pub audit_log_format: FormatArg,
    /// Compress old files
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub audit_log_compress: bool,
    /// The version of the events
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1",
        value_parser = ["audit.k8s.io/v1"])]
    pub audit_log_version: String,
    /// When events are written
    #[arg(long, value_name = "MODE", default_value = "blocking", value_enum)]
    pub audit_log_mode: ModeArg,
    /// Events that wait in mode batch
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// Events of a batch
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// How long a batch waits to be full
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    pub audit_log_batch_max_wait: Duration,
    /// Limit the rate of batches
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches per second
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f32,
    /// Batches at once
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub audit_log_batch_throttle_burst: u32,
    /// Leave bodies of large events out
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub audit_log_truncate_enabled: bool,
    /// The largest batch in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    pub audit_log_truncate_max_batch_size: usize,
    /// The largest event in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    pub audit_log_truncate_max_event_size: usize,
    /// The kubeconfig of a webhook that events are sent to
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub audit_webhook_config_file: String,
    /// How long to wait after the first failure of a call
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span,
        alias = "audit-webhook-batch-initial-backoff")]
    pub audit_webhook_initial_backoff: Duration,
    /// The version of the events
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1",
        value_parser = ["audit.k8s.io/v1"])]
    pub audit_webhook_version: String,
    /// When events are sent
    #[arg(long, value_name = "MODE", default_value = "batch", value_enum)]
    pub audit_webhook_mode: ModeArg,
    /// Events that wait in mode batch
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// Events of a batch
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// How long a batch waits to be full
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span)]
    pub audit_webhook_batch_max_wait: Duration,
    /// Limit the rate of batches
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches per second
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f32,
    /// Batches at once
    #[arg(long, value_name = "COUNT", default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Leave bodies of large events out
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub audit_webhook_truncate_enabled: bool,
    /// The largest batch in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// The largest event in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    pub audit_webhook_truncate_max_event_size: usize,
}

impl AuditArgs {
    /// What they say. Errors are upstream's.
    pub(super) fn config(&self) -> anyhow::Result<AuditConfig> {
        let given = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let log = match given(&self.audit_log_path) {
            Some(path) => Some(AuditLogConfig {
                path: Some(path).filter(|path| path.as_os_str() != "-"),
                rotation: AuditRotation {
                    max_size: u64::from(self.audit_log_maxsize).saturating_mul(MEGABYTE),
                    max_backups: self.audit_log_maxbackup,
                    max_age_days: self.audit_log_maxage,
                    compress: self.audit_log_compress,
                },
                format: match self.audit_log_format {
                    FormatArg::Json => AuditLogFormat::Json,
                    FormatArg::Legacy => AuditLogFormat::Legacy,
                },
                mode: Batching {
                    plugin: "log",
                    mode: self.audit_log_mode,
                    buffer_size: self.audit_log_batch_buffer_size,
                    max_size: self.audit_log_batch_max_size,
                    max_wait: self.audit_log_batch_max_wait,
                    throttled: self.audit_log_batch_throttle_enable,
                    rate: self.audit_log_batch_throttle_qps,
                    burst: self.audit_log_batch_throttle_burst,
                }
                .mode()?,
                truncate: truncate(
                    "log",
                    self.audit_log_truncate_enabled,
                    self.audit_log_truncate_max_batch_size,
                    self.audit_log_truncate_max_event_size,
                )?,
            }),
            None => None,
        };
        let webhook = match given(&self.audit_webhook_config_file) {
            Some(config_file) => Some(AuditWebhookConfig {
                config_file,
                initial_backoff: self.audit_webhook_initial_backoff,
                mode: Batching {
                    plugin: "webhook",
                    mode: self.audit_webhook_mode,
                    buffer_size: self.audit_webhook_batch_buffer_size,
                    max_size: self.audit_webhook_batch_max_size,
                    max_wait: self.audit_webhook_batch_max_wait,
                    throttled: self.audit_webhook_batch_throttle_enable,
                    rate: self.audit_webhook_batch_throttle_qps,
                    burst: self.audit_webhook_batch_throttle_burst,
                }
                .mode()?,
                truncate: truncate(
                    "webhook",
                    self.audit_webhook_truncate_enabled,
                    self.audit_webhook_truncate_max_batch_size,
                    self.audit_webhook_truncate_max_event_size,
                )?,
            }),
            None => None,
        };
        Ok(AuditConfig { policy_file: given(&self.audit_policy_file), log, webhook })
    }
}

/// The flags of one backend's batches.
struct Batching {
    plugin: &'static str,
    mode: ModeArg,
    buffer_size: usize,
    max_size: usize,
    max_wait: Duration,
    throttled: bool,
    rate: f32,
    burst: u32,
}

impl Batching {
    fn mode(&self) -> anyhow::Result<AuditMode> {
        let Batching { plugin, buffer_size, max_size, max_wait, throttled, rate, burst, .. } =
            *self;
        match self.mode {
            ModeArg::Blocking => return Ok(AuditMode::Blocking),
            ModeArg::BlockingStrict => return Ok(AuditMode::BlockingStrict),
            ModeArg::Batch => {}
        }
        let positive = "must be a positive number";
        anyhow::ensure!(
            buffer_size > 0,
            "invalid audit batch {plugin} buffer size {buffer_size}, {positive}"
        );
        anyhow::ensure!(
            max_size > 0,
            "invalid audit batch {plugin} max batch size {max_size}, {positive}"
        );
        anyhow::ensure!(
            !throttled || rate.is_finite() && rate > 0.0,
            "invalid audit batch {plugin} throttle QPS {rate}, {positive}"
        );
        anyhow::ensure!(
            !throttled || burst > 0,
            "invalid audit batch {plugin} throttle burst {burst}, {positive}"
        );
        let throttle = throttled.then_some((rate, burst));
        Ok(AuditMode::Batch(AuditBatchConfig { buffer_size, max_size, max_wait, throttle }))
    }
}

/// A batch is made of events that fit, so its own limit is only checked.
fn truncate(
    plugin: &str,
    enabled: bool,
    max_batch_size: usize,
    max_event_size: usize,
) -> anyhow::Result<Option<AuditTruncateConfig>> {
    anyhow::ensure!(
        max_event_size > 0,
        "invalid audit truncate {plugin} max event size {max_event_size}, must be a positive number"
    );
    anyhow::ensure!(
        max_batch_size >= max_event_size,
        "invalid audit truncate {plugin} max batch size {max_batch_size}, must be greater than max event size \
         ({max_event_size})"
    );
    Ok(enabled.then_some(AuditTruncateConfig { max_event_size }))
}

fn span(text: &str) -> Result<Duration, String> {
    let parsed = match text {
        "0" => Ok(jiff::SignedDuration::ZERO),
        text => text.parse::<jiff::SignedDuration>(),
    };
    let span = parsed.ok().and_then(|span| Duration::try_from(span).ok());
    let span = span.ok_or_else(|| "expected a duration such as 30s".to_owned())?;
    Ok(span.min(super::MAX_DURATION))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn parse(line: &str) -> Result<AuditConfig, String> {
        Cli::try_parse_from(std::iter::once("kube-apiserver").chain(line.split_whitespace()))
            .map_err(|error| error.to_string())?
            .serve
            .audit
            .config()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn audit_flags_are_upstreams() {
        let config = parse("--audit-policy-file= --audit-log-path=").unwrap();
        assert!(config.policy_file.is_none() && config.log.is_none() && config.webhook.is_none());
        let config = parse(
            "--audit-policy-file=p --audit-log-path=- --audit-log-maxage=1 --audit-log-maxbackup=2 \
             --audit-log-maxsize=3 --audit-log-format=legacy --audit-log-mode=blocking-strict \
             --audit-webhook-config-file=w --audit-webhook-batch-initial-backoff=100ms \
             --audit-webhook-batch-max-wait=5s --audit-webhook-truncate-enabled",
        )
        .unwrap();
        let log = config.log.unwrap();
        assert_eq!((log.path, log.mode), (None, AuditMode::BlockingStrict));
        assert_eq!(log.rotation.max_size, 3 << 20);
        let webhook = config.webhook.unwrap();
        assert_eq!(webhook.initial_backoff, Duration::from_millis(100));
        assert_eq!(webhook.truncate, Some(AuditTruncateConfig { max_event_size: 100 << 10 }));
        let batch = AuditBatchConfig {
            buffer_size: 10_000,
            max_size: 400,
            max_wait: Duration::from_secs(5),
            throttle: Some((10.0, 15)),
        };
        assert_eq!(webhook.mode, AuditMode::Batch(batch));
        let default = parse("--audit-log-path=a").unwrap().log.unwrap();
        assert_eq!((default.mode, default.rotation.max_backups), (AuditMode::Blocking, 100));
    }

    #[test]
    fn audit_flags_with_invalid_values_are_rejected() {
        for (line, fault) in [
            ("--audit-log-mode=other", "--audit-log-mode"),
            ("--audit-log-format=xml", "--audit-log-format"),
            ("--audit-log-version=audit.k8s.io/v1beta1", "--audit-log-version"),
            ("--audit-log-maxage=-1", "--audit-log-maxage"),
            ("--audit-log-maxsize=-1", "--audit-log-maxsize"),
            ("--audit-webhook-initial-backoff=-1s", "--audit-webhook-initial-backoff"),
            (
                "--audit-webhook-config-file=w --audit-webhook-batch-buffer-size=0",
                "invalid audit batch webhook buffer size 0, must be a positive number",
            ),
            (
                "--audit-webhook-config-file=w --audit-webhook-batch-throttle-qps=0",
                "invalid audit batch webhook throttle QPS 0",
            ),
            (
                "--audit-log-path=a --audit-log-mode=batch --audit-log-batch-throttle-enable \
                 --audit-log-batch-throttle-qps=1",
                "invalid audit batch log throttle burst 0",
            ),
            (
                "--audit-log-path=a --audit-log-truncate-max-batch-size=10",
                "invalid audit truncate log max batch size 10",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(fault), "{line}: {error}");
        }
    }
}
