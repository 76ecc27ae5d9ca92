//! Passes the upgrade of a client to a backend.

use std::io;
use std::time::Duration;

use http_body_util::Either;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use longshore_base::panics;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::activity::Active;
use crate::backend::{drop_hop_headers, request, send};
use crate::relay::{OpenStreams, relay};
use crate::{Answer, Error, spdy};

/// How long a client may take to close a session that has ended, and a backend to end one whose client is
/// gone.
pub const LINGER: Duration = Duration::from_secs(5);

/// Sends the client's request to `target` through `io`, and returns the response; once the backend
/// upgrades, bytes are copied both ways; frames of a SPDY client are checked before.
///
/// # Errors
/// When the client requests no upgrade, and when the backend does not respond or redirects.
pub async fn pass<B, S>(
    client: &mut Request<B>,
    target: &Uri,
    io: S,
    idle: Duration,
) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    pass_as(client, target, &HeaderMap::new(), io, idle).await
}

/// The same with these headers in addition, which name the client's user to a backend that trusts this
/// side.
///
/// # Errors
/// As [`pass`].
pub async fn pass_as<B, S>(
    client: &mut Request<B>,
    target: &Uri,
    user: &HeaderMap,
    io: S,
    idle: Duration,
) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if !is_upgrade(client.headers()) {
        return Err(Error::NoUpgrade);
    }
    let mut request = request(client.method().clone(), target, client.headers().clone());
    request.headers_mut().extend(user.clone());
    let mut response = send(io, request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let is_spdy = is_spdy(response.headers());
        spawn_join(client, &mut response, move |client, backend| async move {
            let (client, expired) = Active::new(client, idle);
            tokio::select! {
                () = join(client, backend, is_spdy) => {}
                () = expired => debug!("session was idle for {idle:?}"),
            }
        });
    } else {
        drop_hop_headers(response.headers_mut());
        close_on_refusal(true, &mut response);
    }
    Ok(response.map(Either::Left))
}

/// Joins both sides in a task of its own, once both have upgraded.
pub(crate) fn spawn_join<B, C, F>(
    client: &mut Request<B>,
    response: &mut Response<C>,
    join: impl FnOnce(Upgraded, Upgraded) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    let (client, backend) = (hyper::upgrade::on(client), hyper::upgrade::on(response));
    tokio::spawn(panics::contain(async move {
        match futures::try_join!(client, backend) {
            Ok((client, backend)) => join(client, backend).await,
            Err(error) => debug!("upgrade failed: {error}"),
        }
    }));
}

/// Closes the connection after this response if it refuses a requested upgrade: data that the
/// client still sends must neither reach a backend, nor be taken for another request if a proxy
/// between them regards it as part of the session.
pub fn close_on_refusal<B>(is_upgrade: bool, response: &mut Response<B>) {
    if is_upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Copies both ways until either side closes, or the client sends an invalid frame.
async fn join(client: Active, backend: Upgraded, is_spdy: bool) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_backend, mut to_backend) = split(TokioIo::new(backend));
    let mut open = OpenStreams::default();
    let up = async {
        if !is_spdy {
            _ = copy(&mut from_client, &mut to_backend).await;
            return;
        }
        let relayed = relay(&mut from_client, &mut to_backend, &mut open).await;
        if matches!(relayed, Err(Error::Spdy(_))) {
            open = OpenStreams::default();
        }
        log_invalid(relayed);
    };
    let is_client_gone = tokio::select! {
        () = up => true,
        _ = copy(&mut from_backend, &mut to_client) => false,
    };
    if is_client_gone {
        if !open.is_empty() {
            end_session(open.end(to_backend), from_backend).await;
        }
        return;
    }
    // closing a connection with unread data may discard data that was sent
    let drain = async {
        let _ = to_client.shutdown().await;
        let _ = copy(&mut from_client, &mut sink()).await;
    };
    let _ = timeout(LINGER, drain).await;
}

/// Ends the streams of a client that is gone, and lets the backend end the session: some kill a command when
/// the connection is closed, and leave what it has started with its input open.
pub(crate) async fn end_session(
    end_streams: impl Future<Output = io::Result<()>>,
    mut backend: impl AsyncRead + Unpin,
) {
    let ended = async {
        end_streams.await?;
        copy(&mut backend, &mut sink()).await
    };
    if let Ok(Err(error)) = timeout(LINGER, ended).await {
        debug!("a session whose client is gone has failed: {error}");
    }
}

/// Logs why a session ends if its client sent an invalid frame.
pub(crate) fn log_invalid(result: Result<(), Error>) {
    match result {
        Err(error @ Error::Spdy(_)) => warn!("the session is closed for an invalid frame: {error}"),
        Err(error) => debug!("the session has failed: {error}"),
        Ok(()) => {}
    }
}

/// Whether the headers switch to SPDY/3.1.
pub fn is_spdy(headers: &HeaderMap) -> bool {
    let spdy = spdy::PROTOCOL.as_bytes();
    headers.get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(spdy))
}

/// Whether the request asks for any upgrade.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) && has_connection_upgrade(headers)
}

/// Whether the `Connection` header contains `upgrade`.
pub(crate) fn has_connection_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
}
