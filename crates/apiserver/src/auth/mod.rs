//! Authentication. Authorization is in `authz`.
//!
//! Current limitations: no authentication by front proxy, OpenID Connect or webhook.

mod authenticator;
mod bootstrap;
mod token_file;

pub use authenticator::AuthenticationConfig;
pub(crate) use authenticator::{Authenticator, Error};
