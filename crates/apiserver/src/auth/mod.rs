//! Authentication. Authorization is in `authz`.
//!
//! Current limitations: no authentication by OpenID Connect or webhook.

mod authenticator;
mod bootstrap;
mod front_proxy;
mod token_file;

pub use authenticator::AuthenticationConfig;
pub(crate) use authenticator::{Authenticator, Error};
pub use front_proxy::FrontProxyConfig;
