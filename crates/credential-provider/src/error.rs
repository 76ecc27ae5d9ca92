//! Why a plugin has given no credential.

/// Why a plugin has given no credential. The words are upstream's; none is a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The plugin did not run, failed, took too long, or wrote too much.
    #[error("error execing credential provider plugin {plugin} for image {image}: {why}")]
    Exec {
        /// The plugin.
        plugin: String,
        /// The image, without tag and digest.
        image: String,
        /// The cause.
        why: String,
    },
    /// The response is no JSON object.
    #[error("error reading GVK from response: line {line}, column {column}")]
    NoVersion {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The response has another version than the configuration.
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, \
         actual apiVersion:{actual}"
    )]
    Version {
        /// That of the configuration.
        expected: String,
        /// That of the response.
        actual: String,
    },
    /// The response is not one.
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
    /// It does not say for which images the response holds.
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKeyType(String),
}
