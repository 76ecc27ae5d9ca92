//! Service accounts: admission of pods, issue of tokens and their validation. Used by `routes` (TokenRequest), `auth` and `operations` (creation of pods).
//!
//! Current limitations: secrets of type `kubernetes.io/service-account-token` are not filled in.

mod request;
#[cfg(test)]
mod tests;
mod token_validation;
