//! A client's upgrade, handed on as it is.

use std::time::Duration;

use http_body_util::Either;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use longshore_base::panics;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::time::timeout;
use tracing::debug;

use crate::activity::Active;
use crate::backend::{drop_hop_headers, request, send};
use crate::{Answer, Error};

/// How long a client may take to see that its session has ended.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Sends the client's request to `target` through `io`, and its answer back; once the backend
/// upgrades, bytes flow both ways.
///
/// # Errors
/// When the client asks for no upgrade, and when the backend gives no answer or a redirect.
pub async fn pass<B, S>(
    client: &mut Request<B>,
    target: &Uri,
    io: S,
    idle: Duration,
) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if !is_upgrade(client.headers()) {
        return Err(Error::NoUpgrade);
    }
    let request = request(client.method().clone(), target, client.headers().clone());
    let mut response = send(io, request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let (client, backend) = (hyper::upgrade::on(client), hyper::upgrade::on(&mut response));
        tokio::spawn(panics::contain(async move {
            match futures::try_join!(client, backend) {
                Ok((client, backend)) => join(client, backend, idle).await,
                Err(error) => debug!("upgrade failed: {error}"),
            }
        }));
    } else {
        drop_hop_headers(response.headers_mut());
        end_refused(true, &mut response);
    }
    Ok(response.map(Either::Left))
}

/// Has the connection end with this answer if it refuses an upgrade that was asked for: nothing that
/// the client still sends can reach a backend, or pass for a request of its own where somebody
/// between takes it for part of a session.
pub fn end_refused<B>(is_upgrade: bool, answer: &mut Response<B>) {
    if is_upgrade && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Copies both ways until either side ends.
async fn join(client: Upgraded, backend: Upgraded, idle: Duration) {
    let (client, expired) = Active::new(client, idle);
    let (mut from_client, mut to_client) = split(client);
    let (mut from_backend, mut to_backend) = split(TokioIo::new(backend));
    tokio::select! {
        _ = copy(&mut from_client, &mut to_backend) => {}
        _ = copy(&mut from_backend, &mut to_client) => {
            // a connection that is closed with something still unread takes back what was sent
            let drain = async {
                let _ = to_client.shutdown().await;
                let _ = copy(&mut from_client, &mut sink()).await;
            };
            let _ = timeout(LINGER, drain).await;
        }
        () = expired => debug!("nothing moved for {idle:?}"),
    }
}

/// Whether the request asks for an upgrade of whatever kind.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) && names_upgrade(headers)
}

/// Whether the connection's options name the upgrade.
pub(crate) fn names_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
}
