//! Servers for tests: on loopback, with and without TLS.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers one request; `answer` is given its path, and its body if that is JSON.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&str, Value) -> (u16, Value),
    written: fn(&Value) -> String,
) {
    let mut text = Vec::new();
    let (path, body) = loop {
        let mut buffer = [0; 4096];
        let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
        text.extend_from_slice(&buffer[..read]);
        let all = String::from_utf8(text.clone()).unwrap();
        let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
        let path = head.split(' ').nth(1).unwrap().to_owned();
        if head.starts_with("GET") {
            break (path, Value::Null);
        }
        if let Ok(body) = serde_json::from_str(body) {
            break (path, body);
        }
    };
    let (code, answer) = answer(&path, body);
    let answer = written(&answer);
    let length = answer.len();
    let head =
        format!("HTTP/1.1 {code} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// A server that answers posted JSON; the kubeconfig that names it.
pub(crate) async fn serve_json(
    answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static,
) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/review", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(exchange(stream, move |_, body| answer(body), Value::to_string));
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "current-context: c\nclusters: [{{name: k, cluster: {{server: '{url}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k}}}}]\n"
    );
    std::fs::write(file.path(), text).unwrap();
    file.keep().unwrap().1
}

/// A text as it is, and anything else as JSON.
fn document(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A server with TLS that answers GETs by their path: its URL, and its CA (PEM).
pub(crate) async fn serve_documents(
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (String, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(crate::pki::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (own, answer) = (url.clone(), Arc::new(answer));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, answer, own) = (acceptor.clone(), answer.clone(), own.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                exchange(stream, move |path, _| answer(&own, path), document).await;
            });
        }
    });
    (url, authority.pem())
}
