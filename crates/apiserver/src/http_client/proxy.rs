//! Proxies on the way to a server, as the `proxy-url` of a kubeconfig or the environment names them: of HTTP,
//! over TLS or not, and of SOCKS5. The certificate of a proxy is verified by the authorities of the system.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use longshore_base::proxies::ProxyEnvironment;
use percent_encoding::percent_decode_str;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::{Tls, dial, tls};

/// The most that a proxy may answer before the connection (bytes).
const MAX_HEAD: usize = 16 << 10;

/// What goes to a server, whatever is between.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Socks5,
}

/// Those of the environment, which is read when the program starts.
static ENVIRONMENT: OnceLock<Proxies> = OnceLock::new();

struct Proxies {
    environment: ProxyEnvironment,
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
}

impl Proxies {
    fn of(environment: ProxyEnvironment) -> Result<Proxies, String> {
        let proxy = |variable: &str, url: Option<&str>| {
            let proxy = url.map(Proxy::of).transpose();
            proxy.map(|proxy| proxy.map(Arc::new)).map_err(|why| format!("{variable}: {why}"))
        };
        Ok(Proxies {
            http: proxy("HTTP_PROXY", environment.http())?,
            https: proxy("HTTPS_PROXY", environment.https())?,
            environment,
        })
    }

    fn for_server(&self, is_tls: bool, host: &str, port: u16) -> Option<Arc<Proxy>> {
        let proxy = if is_tls { &self.https } else { &self.http };
        proxy.clone().filter(|_| self.environment.applies_to(host, port))
    }
}

/// Has servers called through the proxies that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name, from now on.
///
/// # Errors
/// A proxy's URL is not valid.
pub fn use_environment() -> Result<(), String> {
    let proxies = Proxies::of(ProxyEnvironment::of_process())?;
    // a second call changes nothing, as the environment does not change
    let _ = ENVIRONMENT.set(proxies);
    Ok(())
}

/// The proxy that the environment names for a server.
pub(crate) fn of_environment(is_tls: bool, host: &str, port: u16) -> Option<Arc<Proxy>> {
    ENVIRONMENT.get()?.for_server(is_tls, host, port)
}

/// A proxy.
pub(crate) struct Proxy {
    scheme: Scheme,
    host: String,
    port: u16,
    user: Option<(String, String)>,
    /// For its own certificate.
    tls: Option<Tls>,
}

impl Proxy {
    /// The proxy of a URL.
    pub(crate) fn of(url: &str) -> Result<Proxy, String> {
        // a user in it may have a password, which no message quotes
        let invalid = |why: &str| format!("invalid proxy-url: {why}");
        let uri: Uri = url.parse().map_err(|_| invalid("it is not a URL"))?;
        let (scheme, default) = match uri.scheme_str() {
            Some("http") => (Scheme::Http, 80),
            Some("https") => (Scheme::Https, 443),
            Some("socks5" | "socks5h") => (Scheme::Socks5, 1080),
            _ => {
                return Err(invalid("unsupported scheme, must be http, https, or socks5"));
            }
        };
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name), decoded(password))
        });
        let own = match scheme {
            Scheme::Https => Some(Arc::new(tls::client(None, false, None)?)),
            _ => None,
        };
        Ok(Proxy {
            scheme,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(default),
            user,
            tls: own,
        })
    }

    /// Whether requests to plain servers are sent to the proxy itself, with the whole URL.
    pub(crate) fn takes_requests(&self) -> bool {
        self.scheme != Scheme::Socks5
    }

    /// The value of `Proxy-Authorization`.
    pub(crate) fn authorization(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }

    /// A connection to the proxy.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let stream =
            dial(&self.host, self.port).await.map_err(|why| format!("proxyconnect {why}"))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
        Ok(Box::new(stream.map_err(|error| format!("proxyconnect tcp: tls: {error}"))?))
    }

    /// A connection to that port through the proxy.
    pub(crate) async fn tunnel(&self, host: &str, port: u16) -> Result<Box<dyn Stream>, String> {
        let mut stream = self.connect().await?;
        match self.scheme {
            Scheme::Socks5 => self.socks(&mut stream, host, port).await?,
            Scheme::Http | Scheme::Https => self.request_tunnel(&mut stream, host, port).await?,
        }
        Ok(stream)
    }

    async fn request_tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        host: &str,
        port: u16,
    ) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("proxyconnect tcp: {error}");
        let target =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let authorization = self.authorization();
        let authorization = authorization
            .map(|value| format!("Proxy-Authorization: {value}\r\n"))
            .unwrap_or_default();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut head = Vec::new();
        // what follows the head is the server's already
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_HEAD {
                return Err("proxyconnect tcp: the proxy answers too much".to_owned());
            }
            head.push(stream.read_u8().await.map_err(failed)?);
        }
        let head = String::from_utf8_lossy(&head);
        let status =
            head.lines().next().and_then(|line| line.split_once(' ')).map(|(_, rest)| rest);
        match status {
            Some(status) if status.starts_with("200") => Ok(()),
            Some(status) => Err(format!("proxyconnect tcp: {}", status.trim())),
            None => Err("proxyconnect tcp: malformed HTTP response".to_owned()),
        }
    }

    /// RFC 1928, and RFC 1929 for the user.
    async fn socks(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        host: &str,
        port: u16,
    ) -> Result<(), String> {
        const VERSION: u8 = 5;
        const NO_AUTHENTICATION: u8 = 0;
        const PASSWORD: u8 = 2;
        let failed = |error: std::io::Error| format!("socks connect: {error}");
        let text = |text: &str| -> Result<Vec<u8>, String> {
            let length = u8::try_from(text.len()).map_err(|_| "socks connect: name too long")?;
            Ok([&[length][..], text.as_bytes()].concat())
        };
        let method = if self.user.is_some() { PASSWORD } else { NO_AUTHENTICATION };
        stream.write_all(&[VERSION, 1, method]).await.map_err(failed)?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await.map_err(failed)?;
        if chosen != [VERSION, method] {
            return Err("socks connect: no acceptable authentication methods".to_owned());
        }
        if let Some((name, password)) = &self.user {
            let request = [vec![1], text(name)?, text(password)?].concat();
            stream.write_all(&request).await.map_err(failed)?;
            let mut answer = [0; 2];
            stream.read_exact(&mut answer).await.map_err(failed)?;
            if answer[1] != 0 {
                return Err("socks connect: username/password authentication failed".to_owned());
            }
        }
        let address = match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => [&[1][..], &address.octets()].concat(),
            Ok(IpAddr::V6(address)) => [&[4][..], &address.octets()].concat(),
            Err(_) => [vec![3], text(host)?].concat(),
        };
        let request = [&[VERSION, 1, 0][..], &address, &port.to_be_bytes()].concat();
        stream.write_all(&request).await.map_err(failed)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.map_err(failed)?;
        if answer[0] != VERSION || answer[1] != 0 {
            return Err(format!("socks connect: the proxy refuses, code {}", answer[1]));
        }
        // the address from which the proxy connects, which says nothing here
        let length = match answer[3] {
            1 => 4,
            4 => 16,
            3 => usize::from(stream.read_u8().await.map_err(failed)?),
            _ => return Err("socks connect: unknown address type".to_owned()),
        };
        let mut bound = vec![0; length.saturating_add(2)];
        stream.read_exact(&mut bound).await.map_err(failed)?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn http_client_proxies_are_urls() {
        for (url, scheme, host, port) in [
            ("http://p:3128", Scheme::Http, "p", 3128),
            ("http://p", Scheme::Http, "p", 80),
            ("socks5://[::1]", Scheme::Socks5, "::1", 1080),
        ] {
            let found = Proxy::of(url).unwrap();
            assert_eq!((found.scheme, found.host.as_str(), found.port), (scheme, host, port));
            assert_eq!(found.authorization(), None);
        }
        let user = Proxy::of("http://a:p%40ss@p:1").unwrap();
        assert_eq!(user.authorization().unwrap(), format!("Basic {}", STANDARD.encode("a:p@ss")));
        for url in ["", "p:3128", "ftp://u:s3cret@p", "http://u:s3cret@", "u:s3cret"] {
            let error = Proxy::of(url).err().unwrap();
            assert!(error.starts_with("invalid proxy-url") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn http_client_proxies_are_chosen_by_scheme_and_host() {
        let of = |https: &str| {
            let variables =
                [("HTTP_PROXY", "p:3128"), ("HTTPS_PROXY", https), ("NO_PROXY", ".svc")];
            Proxies::of(ProxyEnvironment::of(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            }))
        };
        let proxies = of("socks5://s").unwrap();
        for (is_tls, host, expected) in [
            (true, "h.example", Some("s")),
            (false, "h.example", Some("p")),
            (true, "hook.default.svc", None),
            (true, "127.0.0.1", None),
        ] {
            let found = proxies.for_server(is_tls, host, 443);
            assert_eq!(found.as_ref().map(|proxy| proxy.host.as_str()), expected, "{host}");
        }
        let error = of("ftp://u:s3cret@p").err().unwrap();
        assert!(error.starts_with("HTTPS_PROXY: ") && !error.contains("s3cret"), "{error}");
    }

    /// What the proxy is sent before it answers each time, and what came of it.
    async fn negotiated(url: &str, steps: &[(&[u8], &[u8])]) -> Result<(), String> {
        let proxy = Proxy::of(url).unwrap();
        let (mut near, mut far) = tokio::io::duplex(4096);
        let serve = async {
            for (expected, answer) in steps {
                let mut read = vec![0; expected.len()];
                far.read_exact(&mut read).await.unwrap();
                assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(expected));
                far.write_all(answer).await.unwrap();
            }
        };
        let connect = async {
            match proxy.scheme {
                Scheme::Socks5 => proxy.socks(&mut near, "h.example", 443).await,
                _ => proxy.request_tunnel(&mut near, "h.example", 443).await,
            }
        };
        tokio::join!(connect, serve).0
    }

    #[tokio::test]
    async fn http_client_tunnels_are_negotiated() {
        let connect = b"CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\n\r\n";
        let ok = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n";
        assert_eq!(negotiated("http://p", &[(connect, ok)]).await, Ok(()));
        let refused = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        let error = negotiated("http://p", &[(connect, refused)]).await.unwrap_err();
        assert_eq!(error, "proxyconnect tcp: 407 Proxy Authentication Required");
        let request = b"\x05\x01\x00\x03\x09h.example\x01\xbb";
        let bound = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x01";
        let greeting: (&[u8], &[u8]) = (b"\x05\x01\x00", b"\x05\x00");
        assert_eq!(negotiated("socks5://p", &[greeting, (request, bound)]).await, Ok(()));
        let denied = b"\x05\x02\x00\x01";
        let error = negotiated("socks5://p", &[greeting, (request, denied)]).await.unwrap_err();
        assert_eq!(error, "socks connect: the proxy refuses, code 2");
        let with_user: [(&[u8], &[u8]); 3] =
            [(b"\x05\x01\x02", b"\x05\x02"), (b"\x01\x01a\x02bc", b"\x01\x00"), (request, bound)];
        assert_eq!(negotiated("socks5://a:bc@p", &with_user).await, Ok(()));
        let error = negotiated("socks5://p", &[(b"\x05\x01\x00", b"\x05\xff")]).await.unwrap_err();
        assert!(error.contains("no acceptable authentication"), "{error}");
    }
}
