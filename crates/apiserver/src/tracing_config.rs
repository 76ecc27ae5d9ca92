//! `--tracing-config-file`: a TracingConfiguration of apiserver.config.k8s.io, which says where spans of
//! requests are sent, and how many of them.

use std::path::Path;

use longshore_telemetry::Settings;
use serde::Deserialize;

use crate::config_file::parse;

const VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const MILLION: i32 = 1_000_000;

/// What is traced, and to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfig {
    endpoint: String,
    rate_per_million: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i32>,
}

impl TracingConfig {
    /// Sends the spans of so many of a million requests to an endpoint.
    #[must_use]
    pub fn new(endpoint: String, rate_per_million: u32) -> TracingConfig {
        TracingConfig { endpoint, rate_per_million }
    }

    /// Reads a file and checks it.
    ///
    /// # Errors
    /// The file cannot be read, or says what cannot be done.
    pub fn load(path: &Path) -> Result<TracingConfig, String> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!("unable to read tracing configuration from {:?}: {error}", path.display())
        })?;
        TracingConfig::read(&text)
    }

    fn read(text: &str) -> Result<TracingConfig, String> {
        let file: File = parse(text)
            .map_err(|error| format!("unable to decode tracing configuration data: {error}"))?;
        if file.kind != "TracingConfiguration" || !VERSIONS.contains(&file.api_version.as_str()) {
            return Err(format!(
                "{}, {} is not a TracingConfiguration",
                file.api_version, file.kind
            ));
        }
        let rate = file.sampling_rate_per_million.unwrap_or_default();
        let invalid = |field, value: String, why| format!("{field}: Invalid value: {value}: {why}");
        if rate > MILLION {
            let why = "sampling rate per million must be less than or equal to one million";
            return Err(invalid("samplingRatePerMillion", rate.to_string(), why));
        }
        let rate_per_million = u32::try_from(rate).map_err(|_| {
            let why = "sampling rate must be positive";
            invalid("samplingRatePerMillion", rate.to_string(), why)
        })?;
        let endpoint = file.endpoint.filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| Settings::DEFAULT_ENDPOINT.to_owned());
        match endpoint.split_once("//").map(|(scheme, _)| scheme) {
            None | Some("dns:" | "unix:") => Ok(TracingConfig { endpoint, rate_per_million }),
            Some(scheme) => Err(invalid(
                "endpoint",
                format!("{endpoint:?}"),
                &format!(
                    "unsupported scheme: {}.  Options are none, dns, or unix.  See \
                     https://github.com/grpc/grpc/blob/master/doc/naming.md",
                    scheme.trim_end_matches(':')
                ),
            )),
        }
    }

    /// The same for this server, by the name of its identity.
    pub(crate) fn settings(&self, instance: String) -> Settings {
        Settings {
            endpoint: self.endpoint.clone(),
            rate_per_million: self.rate_per_million,
            service: "apiserver",
            attributes: vec![("service.instance.id", instance)],
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    #[test]
    fn tracing_config_is_read_as_upstreams() {
        for (text, endpoint, rate) in [
            ("", "localhost:4317", 0),
            ("endpoint: otel:4317\nsamplingRatePerMillion: 100\n", "otel:4317", 100),
            (
                "endpoint: dns:///otel:4317\nsamplingRatePerMillion: 1000000\n",
                "dns:///otel:4317",
                1_000_000,
            ),
            ("endpoint: unix:///run/otel.sock\n", "unix:///run/otel.sock", 0),
        ] {
            let expected = TracingConfig::new(endpoint.to_owned(), rate);
            assert_eq!(TracingConfig::read(&format!("{HEAD}{text}")), Ok(expected));
            let beta = HEAD.replace("/v1", "/v1beta1");
            assert!(TracingConfig::read(&format!("{beta}{text}")).is_ok());
        }
    }

    #[test]
    fn tracing_config_that_is_not_valid_is_refused() {
        for (text, why) in [
            (
                format!("{HEAD}samplingRatePerMillion: -1\n"),
                "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
            ),
            (
                format!("{HEAD}samplingRatePerMillion: 1000001\n"),
                "must be less than or equal to one million",
            ),
            (format!("{HEAD}endpoint: http://otel:4317\n"), "unsupported scheme: http.  Options"),
            (format!("{HEAD}sampling: 1\n"), "unable to decode tracing configuration data: "),
            (
                HEAD.replace("/v1", "/v2"),
                "apiserver.config.k8s.io/v2, TracingConfiguration is not a",
            ),
            (HEAD.replace("Tracing", "Audit"), "is not a TracingConfiguration"),
            (String::new(), "unable to decode"),
        ] {
            let error = TracingConfig::read(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = TracingConfig::load(Path::new("/none/such")).unwrap_err();
        assert!(
            error.starts_with("unable to read tracing configuration from \"/none/such\""),
            "{error}"
        );
    }
}
