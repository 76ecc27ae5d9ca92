//! What every namespace has: the service account `default`, and the config map with the CA by which
//! pods verify the apiserver.

pub(crate) mod default_account;
pub(crate) mod legacy_tokens;
pub(crate) mod root_ca;
pub(crate) mod tokens;
