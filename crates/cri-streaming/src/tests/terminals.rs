//! The client of crate streams that joins the terminal of its own process to a command.

use longshore_streams::{self as streams, Status, TerminalInput};
use tokio::sync::mpsc;

use super::*;

/// A command to its end, with that input: how it ended, and what it wrote.
async fn run(
    running: &Running,
    command: &[&str],
    input: &[TerminalInput],
) -> (Result<Status, String>, String) {
    let (target, connection) = streams::dial(&running.exec(command, TTY)).await.unwrap();
    let request = streams::spdy_request(&target, &streams::REMOTE_COMMANDS);
    let session = streams::upgrade(connection, request).await.unwrap();
    let (sender, mut receiver) = mpsc::channel(16);
    for one in input {
        sender.send(one.clone()).await.unwrap();
    }
    // A command that reads to the end of its input would wait for ever: that of a terminal has none.
    let kept = (command[0] != "cat").then_some(sender);
    let mut output = Vec::new();
    let ended = streams::terminal(session, &mut receiver, &mut output);
    let ended = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    drop(kept);
    (ended.map_err(|error| error.to_string()), String::from_utf8(output).unwrap())
}

#[tokio::test]
async fn terminal_has_output_sizes_and_status() {
    let running = Running::start().await;
    let size = |columns, rows| TerminalInput::Size { columns, rows };
    let not_running = "error executing command in container: container c1 is not running";
    for (command, input, status, output) in [
        (
            // Of two sizes the command may see the last one alone.
            &["sizes", "1"][..],
            vec![size(80, u16::MAX)],
            Status::Success,
            "80x65535\n",
        ),
        (&["exit", "7"], vec![TerminalInput::Keys("ls\n".into())], Status::Exit(7), ""),
        (&["nothing"], vec![], Status::Internal(not_running.to_owned()), ""),
    ] {
        assert_eq!(
            run(&running, command, &input).await,
            (Ok(status), output.to_owned()),
            "{command:?}"
        );
    }
    running.end().await;
}

#[tokio::test]
async fn terminal_that_is_gone_ends_the_session() {
    let running = Running::start().await;
    let (ended, _) = run(&running, &["cat"], &[TerminalInput::Keys("x".into())]).await;
    assert!(ended.unwrap_err().contains("the terminal is gone"));
    running.until_sessions(0).await;
    running.end().await;
}
