//! Tests of the ports, as clients.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Extract;
use longshore_config::{Command, from_args};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

mod auth;
mod endpoints;
mod fixture;
mod logs;
mod ports;

use fixture::*;
pub(super) use fixture::{ExtendedUse, Pki, config};

const WEBHOOK: [&str; 3] =
    ["--authorization-mode=Webhook", "--authentication-token-webhook", "--anonymous-auth=false"];
const LOGS: &str = "/containerLogs/ns/p/c";
