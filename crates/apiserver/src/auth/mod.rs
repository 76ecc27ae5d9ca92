//! Authentication. Authorization is in `authz`.
//!
//! Current limitations: those of [`jwt`].

mod authenticator;
mod bootstrap;
mod front_proxy;
pub(crate) mod jwt;
mod token_file;
mod webhook;

pub use authenticator::AuthenticationConfig;
pub(crate) use authenticator::{Authenticator, Error};
pub use front_proxy::FrontProxyConfig;
pub use jwt::JwtConfig;
pub use jwt::config::{Anonymous, AnonymousCondition};
pub use webhook::TokenWebhookConfig;
