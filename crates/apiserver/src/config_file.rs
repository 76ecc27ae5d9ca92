//! Reading of configuration files.

use serde::de::DeserializeOwned;

/// Reads YAML or JSON. An error does not quote the text, which may hold credentials.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
