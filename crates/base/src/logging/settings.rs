//! Settings of the log, as upstream's `LoggingConfiguration` and its flags have them.

use std::time::Duration;

use longshore_duration::GoDuration;
use longshore_quantity::Quantity;

/// Upstream's limit of a buffer (bytes).
const MAX_BUFFER: i128 = 2 << 30;
/// Quantities are in billionths.
const NANOS: i128 = 1_000_000_000;
/// The largest verbosity.
const MAX_VERBOSITY: u32 = i32::MAX.unsigned_abs();
const ALPHA: &str = "LoggingAlphaOptions";
const BETA: &str = "LoggingBetaOptions";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// klog's.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// The verbosity of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VModule {
    /// The name of files without `.rs`, or their path if it has a slash; with wildcards.
    pub pattern: String,
    /// Their verbosity.
    pub verbosity: u32,
}

/// Where lines go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// Whether lines of information go to the standard output; all others go to the standard error.
    pub split_stream: bool,
    /// How much of them is buffered (bytes); 0: nothing.
    pub info_buffer_size: usize,
}

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The form of a line.
    pub format: Format,
    /// `-v`: up to 2 information, up to 5 what helps to find faults, beyond that all.
    pub verbosity: u32,
    /// Exceptions for some files.
    pub vmodule: Vec<VModule>,
    /// Where lines in this format go.
    pub routing: Routing,
    /// How long lines stay in the buffer at most.
    pub flush_frequency: Duration,
    /// Whether verbosity 0 is warnings alone.
    pub quiet: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format: Format::Text,
            verbosity: 0,
            vmodule: Vec::new(),
            routing: Routing::default(),
            flush_frequency: Duration::from_secs(5),
            quiet: false,
        }
    }
}

impl Settings {
    /// Text with that verbosity.
    pub fn of_verbosity(verbosity: u32) -> Self {
        Self { verbosity, ..Self::default() }
    }
}

/// The flags of the log but for `-v`, as they are given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct LoggingFlags {
    /// The form of the log: text or json
    #[cfg_attr(feature = "clap", arg(long, value_name = "FORMAT", default_value = "text"))]
    pub logging_format: String,
    /// How long lines stay in a buffer at most
    #[cfg_attr(feature = "clap", arg(long, value_name = "DURATION", default_value = "5s"))]
    pub log_flush_frequency: String,
    /// The verbosity of files, as PATTERN=N,…; for text alone
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "PATTERN=N", default_value = "", hide_default_value = true)
    )]
    pub vmodule: String,
    /// In text, write information to the standard output; alpha
    #[cfg_attr(feature = "clap", arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true"))]
    pub log_text_split_stream: bool,
    /// How much of that is buffered, as a quantity of bytes; alpha
    #[cfg_attr(feature = "clap", arg(long, value_name = "QUANTITY", default_value = "0"))]
    pub log_text_info_buffer_size: String,
    /// In JSON, write information to the standard output; alpha
    #[cfg_attr(feature = "clap", arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true"))]
    pub log_json_split_stream: bool,
    /// How much of that is buffered, as a quantity of bytes; alpha
    #[cfg_attr(feature = "clap", arg(long, value_name = "QUANTITY", default_value = "0"))]
    pub log_json_info_buffer_size: String,
}

impl Default for LoggingFlags {
    fn default() -> Self {
        Self {
            logging_format: "text".to_owned(),
            log_flush_frequency: "5s".to_owned(),
            vmodule: String::new(),
            log_text_split_stream: false,
            log_text_info_buffer_size: "0".to_owned(),
            log_json_split_stream: false,
            log_json_info_buffer_size: "0".to_owned(),
        }
    }
}

impl LoggingFlags {
    /// The settings; `enabled`: whether a feature gate is. The error has all faults.
    ///
    /// # Errors
    /// A flag is not valid.
    pub fn settings(
        &self,
        verbosity: u32,
        enabled: impl Fn(&str) -> bool,
    ) -> Result<Settings, String> {
        let flush = self.log_flush_frequency.parse::<GoDuration>();
        let configuration = Configuration {
            format: &self.logging_format,
            verbosity,
            vmodule: parse_vmodule(&self.vmodule).map_err(|why| format!("--vmodule: {why}"))?,
            flush_frequency: flush.map_err(|why| format!("--log-flush-frequency: {why}"))?,
            text: (self.log_text_split_stream, &self.log_text_info_buffer_size),
            json: (self.log_json_split_stream, &self.log_json_info_buffer_size),
        };
        configuration.settings("", enabled).map_err(|mut faults| match &mut faults[..] {
            [only] => std::mem::take(only),
            several => format!("[{}]", several.join(", ")),
        })
    }
}

/// Exceptions, as `PATTERN=N,…`.
///
/// # Errors
/// Says which is not one.
pub fn parse_vmodule(text: &str) -> Result<Vec<VModule>, String> {
    let item = |item: &str| {
        let parts: Vec<&str> = item.split('=').collect();
        let [pattern, level] = parts[..] else {
            return Err(format!("{item:?} does not have the pattern=N format"));
        };
        if pattern.is_empty() || level.is_empty() {
            return Err(format!("{item:?} does not have the pattern=N format"));
        }
        let verbosity = level.parse::<u32>().ok().filter(|level| *level <= MAX_VERBOSITY);
        let verbosity =
            verbosity.ok_or_else(|| format!("parsing verbosity in {item:?}: invalid syntax"))?;
        Ok(VModule { pattern: pattern.to_owned(), verbosity })
    };
    text.split(',').filter(|item| !item.is_empty()).map(item).collect()
}

/// The fields of a `LoggingConfiguration`; of each format whether its stream is split, and the size of its
/// buffer as a quantity.
pub struct Configuration<'a> {
    /// `text` or `json`.
    pub format: &'a str,
    /// `-v`.
    pub verbosity: u32,
    /// Exceptions.
    pub vmodule: Vec<VModule>,
    /// How long lines stay in a buffer.
    pub flush_frequency: GoDuration,
    /// For text.
    pub text: (bool, &'a str),
    /// For JSON.
    pub json: (bool, &'a str),
}

impl Configuration<'_> {
    /// The settings. `prefix`: of fields in messages; `enabled`: whether a feature gate is.
    ///
    /// # Errors
    /// What is not valid, in the words of upstream.
    pub fn settings(
        self,
        prefix: &str,
        enabled: impl Fn(&str) -> bool,
    ) -> Result<Settings, Vec<String>> {
        let Self { format, verbosity, vmodule, flush_frequency, text, json } = self;
        let mut faults = Vec::new();
        let mut fault = |field: &str, why: String| faults.push(format!("{prefix}{field}: {why}"));
        if flush_frequency <= GoDuration::ZERO {
            let value = flush_frequency.to_string();
            fault("flushFrequency", format!("Invalid value: {value:?}: Must be greater than zero"));
        }
        let known = match format {
            "" | "text" => Some(Format::Text),
            "json" => Some(Format::Json),
            other => {
                fault("format", format!("Invalid value: {other:?}: Unsupported log format"));
                None
            }
        };
        if known == Some(Format::Json) && !enabled(BETA) {
            let why = format!("Forbidden: Log format {format} is disabled, see {BETA} feature");
            fault("format", why);
        }
        let too_large = |level: u32| {
            (level > MAX_VERBOSITY)
                .then(|| format!("Invalid value: {level}: Must be <= {MAX_VERBOSITY}"))
        };
        if let Some(why) = too_large(verbosity) {
            fault("verbosity", why);
        }
        if !vmodule.is_empty() && known != Some(Format::Text) {
            fault("vmodule", "Forbidden: Only supported for text log format".to_owned());
        }
        for (index, VModule { pattern, verbosity }) in vmodule.iter().enumerate() {
            let field = format!("vmodule[{index}]");
            if pattern.is_empty() {
                fault(&field, "Required value: File pattern must not be empty".to_owned());
            }
            if pattern.contains(['=', ',']) {
                let why = "File pattern must not contain equal sign or comma";
                fault(&field, format!("Invalid value: {pattern:?}: {why}"));
            }
            if let Some(why) = too_large(*verbosity) {
                fault(&field, why);
            }
        }
        let mut routing = |name: &str, (split_stream, size): (bool, &str)| {
            let disabled = || format!("Forbidden: Feature {ALPHA} is disabled");
            if split_stream && !enabled(ALPHA) {
                fault(&format!("options.{name}.splitStream"), disabled());
            }
            let field = format!("options.{name}.infoBufferSize");
            let whole = |size: Quantity| (size.amount() + (NANOS - 1)) / NANOS;
            let size = Quantity::parse(size).map(whole).unwrap_or_else(|| {
                fault(&field, format!("Invalid value: {size:?}: not a quantity"));
                0
            });
            if size != 0 && !enabled(ALPHA) {
                fault(&field, disabled());
            }
            let info_buffer_size = usize::try_from(size.clamp(0, MAX_BUFFER)).unwrap_or_default();
            Routing { split_stream, info_buffer_size }
        };
        let (text, json) = (routing("text", text), routing("json", json));
        if !faults.is_empty() {
            return Err(faults);
        }
        let format = known.unwrap_or_default();
        let routing = if format == Format::Json { json } else { text };
        let flush_frequency = flush_frequency.get();
        Ok(Settings { format, verbosity, vmodule, routing, flush_frequency, quiet: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beta(gate: &str) -> bool {
        gate == BETA
    }

    #[test]
    fn logging_flags_are_settings() {
        let default = LoggingFlags::default();
        assert_eq!(default.settings(2, beta), Ok(Settings::of_verbosity(2)));
        let json = LoggingFlags {
            logging_format: "json".to_owned(),
            log_json_split_stream: true,
            log_json_info_buffer_size: "1Ki".to_owned(),
            log_flush_frequency: "100ms".to_owned(),
            ..default.clone()
        };
        let settings = json.settings(0, |_| true).unwrap();
        assert_eq!(settings.format, Format::Json);
        assert_eq!(settings.routing, Routing { split_stream: true, info_buffer_size: 1024 });
        assert_eq!(settings.flush_frequency, Duration::from_millis(100));
        let vmodule = LoggingFlags { vmodule: "node=4,images/*=2,".to_owned(), ..default };
        let vmodule = vmodule.settings(0, beta).unwrap().vmodule;
        let vmodule = vmodule.iter().map(|own| (own.pattern.as_str(), own.verbosity));
        assert_eq!(vmodule.collect::<Vec<_>>(), [("node", 4), ("images/*", 2)]);
    }

    #[test]
    fn logging_flags_that_are_not_valid_have_upstreams_messages() {
        let error = |change: fn(&mut LoggingFlags)| {
            let mut flags = LoggingFlags::default();
            change(&mut flags);
            flags.settings(0, beta).unwrap_err()
        };
        let alpha = "Forbidden: Feature LoggingAlphaOptions is disabled";
        assert_eq!(
            error(|own| own.logging_format = "yaml".into()),
            "format: Invalid value: \"yaml\": Unsupported log format"
        );
        assert_eq!(
            error(|own| own.log_flush_frequency = "0s".into()),
            "flushFrequency: Invalid value: \"0s\": Must be greater than zero"
        );
        assert_eq!(
            error(|own| own.log_text_split_stream = true),
            format!("options.text.splitStream: {alpha}")
        );
        assert_eq!(
            error(|own| own.log_json_info_buffer_size = "512".into()),
            format!("options.json.infoBufferSize: {alpha}")
        );
        assert_eq!(
            error(|own| own.vmodule = "a".into()),
            "--vmodule: \"a\" does not have the pattern=N format"
        );
        assert_eq!(
            error(|own| own.vmodule = "a=b".into()),
            "--vmodule: parsing verbosity in \"a=b\": invalid syntax"
        );
        let json = |own: &mut LoggingFlags| {
            own.logging_format = "json".into();
            own.vmodule = "a=1".into();
        };
        assert_eq!(error(json), "vmodule: Forbidden: Only supported for text log format");
        let flags = LoggingFlags { logging_format: "json".into(), ..LoggingFlags::default() };
        assert_eq!(
            flags.settings(u32::MAX, |_| false).unwrap_err(),
            "[format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature, verbosity: Invalid value: 4294967295: Must be <= 2147483647]"
        );
    }
}
