//! Sessions of exec, attach and port-forward, by the client of kube-rs over WebSockets.

use anyhow::{Context, Result, ensure};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use kube::{Api, Client};
use longshore_cri::v1::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{Bed, LIMIT, container};

/// Pods whose sessions all go to that URL.
fn pods(url: &str) -> Result<Api<Pod>> {
    let url: hyper::Uri = url.parse()?;
    let service = tower::service_fn(move |mut request: hyper::Request<kube::client::Body>| {
        let url = url.clone();
        async move {
            let address = url.authority().context("no address")?.as_str();
            let stream = TcpStream::connect(address).await?;
            *request.uri_mut() = url.path().parse()?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection.with_upgrades());
            anyhow::Ok(sender.send_request(request).await?)
        }
    });
    Ok(Api::default_namespaced(Client::new(service, "default")))
}

/// Reads until the output has that text.
async fn read_until(output: &mut (impl AsyncRead + Unpin), wanted: &str) -> Result<String> {
    let mut text = String::new();
    let read = async {
        let mut piece = [0; 4096];
        while !text.contains(wanted) {
            match output.read(&mut piece).await? {
                0 => break,
                count => text.push_str(&String::from_utf8_lossy(&piece[..count])),
            }
        }
        anyhow::Ok(())
    };
    let read = timeout(LIMIT, read).await;
    ensure!(read.is_ok() && text.contains(wanted), "{wanted:?} is missing in {text:?}");
    Ok(text)
}

/// Ends a session whose command ends by itself: its exit code, and 0 for none.
async fn exit_code(mut process: AttachedProcess) -> Result<String> {
    let status = process.take_status().context("no status")?;
    let status = timeout(LIMIT, status).await?.context("the session has no status")?;
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    Ok(causes.into_iter().find_map(|cause| cause.message).unwrap_or_else(|| "0".to_owned()))
}

async fn exec(
    bed: &mut Bed,
    id: &str,
    script: &str,
    params: &AttachParams,
) -> Result<AttachedProcess> {
    let request = ExecRequest {
        container_id: id.to_owned(),
        cmd: ["sh", "-c", script].map(str::to_owned).to_vec(),
        tty: params.tty,
        stdin: params.stdin,
        stdout: params.stdout,
        stderr: params.stderr,
    };
    let url = bed.runtime.exec(request).await?.into_inner().url;
    Ok(pods(&url)?.exec("p", ["x"], params).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_sessions_have_streams_sizes_and_exit_codes() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let id = bed.run(&pod, container("c", "exec sleep 1000"), &config).await?;

    let params = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let script = "read line; echo out $line; echo err $line >&2; exit 7";
    let mut process = exec(&mut bed, &id, script, &params).await?;
    let (mut stdin, mut stdout, mut stderr) = (
        process.stdin().context("no input")?,
        process.stdout().context("no output")?,
        process.stderr().context("no error output")?,
    );
    stdin.write_all(b"of stdin\n").await?;
    assert_eq!(read_until(&mut stdout, "\n").await?, "out of stdin\n");
    assert_eq!(read_until(&mut stderr, "\n").await?, "err of stdin\n");
    assert_eq!(exit_code(process).await?, "7");

    // As much as no buffer on the way holds.
    let params = AttachParams::default().stdout(true).stderr(false);
    let script = "dd if=/dev/zero bs=1024 count=3072 2>/dev/null; echo end";
    let mut process = exec(&mut bed, &id, script, &params).await?;
    let mut received = Vec::new();
    let mut stdout = process.stdout().context("no output")?;
    timeout(LIMIT, stdout.read_to_end(&mut received)).await??;
    assert_eq!((received.len(), &received[3 << 20..]), ((3 << 20) + 4, &b"end\n"[..]));
    assert_eq!(exit_code(process).await?, "0");

    let script = "until [ \"$(stty size 2>/dev/null)\" = '43 132' ]; do sleep 0.1; done; echo resized; exit 3";
    let mut process = exec(&mut bed, &id, script, &AttachParams::interactive_tty()).await?;
    let mut sizes = process.terminal_size().context("no sizes")?;
    sizes.try_send(TerminalSize { width: 132, height: 43 })?;
    let mut stdout = process.stdout().context("no output")?;
    assert_eq!(read_until(&mut stdout, "\n").await?, "resized\r\n");
    assert_eq!(exit_code(process).await?, "3");
    bed.remove_pod(&pod).await?;
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_sessions_reach_the_process_and_its_terminal() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let terminal = ContainerConfig { tty: true, stdin: true, ..container("tty", "exec sh") };
    let plain = ContainerConfig {
        stdin: true,
        ..container("plain", "while read line; do echo got $line; echo not $line >&2; done")
    };
    let (terminal, plain) =
        (bed.run(&pod, terminal, &config).await?, bed.run(&pod, plain, &config).await?);

    let attach = async |bed: &mut Bed, id: &str, params: &AttachParams| {
        let request = AttachRequest {
            container_id: id.to_owned(),
            tty: params.tty,
            stdin: params.stdin,
            stdout: params.stdout,
            stderr: params.stderr,
        };
        let url = bed.runtime.attach(request).await?.into_inner().url;
        anyhow::Ok(pods(&url)?.attach("p", params).await?)
    };
    let params = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let mut process = attach(&mut bed, &plain, &params).await?;
    process.stdin().context("no input")?.write_all(b"this\n").await?;
    let mut stdout = process.stdout().context("no output")?;
    assert_eq!(read_until(&mut stdout, "\n").await?, "got this\n");
    let mut stderr = process.stderr().context("no error output")?;
    assert_eq!(read_until(&mut stderr, "\n").await?, "not this\n");
    process.abort();

    let mut process = attach(&mut bed, &terminal, &AttachParams::interactive_tty()).await?;
    let mut sizes = process.terminal_size().context("no sizes")?;
    sizes.try_send(TerminalSize { width: 132, height: 43 })?;
    let (mut stdin, mut stdout) =
        (process.stdin().context("no input")?, process.stdout().context("no output")?);
    stdin
        .write_all(b"until [ \"$(stty size 2>/dev/null)\" = '43 132' ]; do sleep 0.1; done\n")
        .await?;
    // What is typed is shown, but not with its result.
    stdin.write_all(b"echo resized $((40 + 2)); exit 5\n").await?;
    read_until(&mut stdout, "resized 42").await?;
    assert_eq!(bed.exited(&terminal).await?.exit_code, 5);
    bed.remove_pod(&pod).await?;
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_a_pod_are_forwarded_and_closed_ones_fail() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let script = "mkdir /w && echo reached >/w/x && exec httpd -f -p 127.0.0.1:99 -h /w";
    let id = bed.run(&pod, container("c", script), &config).await?;
    crate::common::until("the port is open", async || {
        let reached = bed.exec(&id, "wget -q -O - http://127.0.0.1:99/x").await;
        match reached {
            Ok(answer) if answer.stdout.starts_with(b"reached") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    for (port, expected) in [(99, "reached\n"), (98, "")] {
        let request = PortForwardRequest { pod_sandbox_id: pod.clone(), port: vec![port] };
        let url = bed.runtime.port_forward(request).await?.into_inner().url;
        let port = u16::try_from(port)?;
        let mut forwarder = pods(&url)?.portforward("p", &[port]).await?;
        let mut stream = forwarder.take_stream(port).context("no stream")?;
        let error = forwarder.take_error(port).context("no errors")?;
        // A closed port may end the stream before this.
        let _ = stream.write_all(b"GET /x HTTP/1.0\r\n\r\n").await;
        if expected.is_empty() {
            let error = timeout(LIMIT, error).await?.context("no error")?;
            ensure!(error.contains("refused"), "{error}");
        } else {
            read_until(&mut stream, expected).await?;
        }
    }
    bed.remove_pod(&pod).await?;
    bed.end().await
}
