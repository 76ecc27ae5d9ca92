//! Logs, over rotations and restarts of the service.

use std::fs;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::*;

use crate::common::{Bed, container, until};

#[tokio::test(flavor = "multi_thread")]
async fn logs_lose_nothing_over_rotations_and_restarts() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i%100)) -ne 0 ] || sleep 0.1; done; printf end";
    let id = bed.run(&pod, container("c", script), &config).await?;
    let folder = std::path::Path::new(&config.log_directory).join("c");
    let log = folder.join("0.log");
    for number in 0..3 {
        until("lines are logged", async || {
            let length = fs::metadata(&log).map(|metadata| metadata.len()).unwrap_or(0);
            if length > 2000 { Ok(()) } else { Err(format!("{length} bytes")) }
        })
        .await?;
        fs::rename(&log, folder.join(format!("0.log.20260101-00000{number}")))?;
        let request = ReopenContainerLogRequest { container_id: id.clone() };
        bed.runtime.reopen_container_log(request).await.context("reopen")?;
        if number == 1 {
            bed.stop_service().await?;
            bed.start_service().await?;
        }
    }
    bed.exited(&id).await.context("its end")?;
    let mut files: Vec<_> = fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    // The one without a stamp is the newest.
    files.rotate_left(1);
    let text = files.iter().map(fs::read_to_string).collect::<std::io::Result<String>>()?;
    let lines: Vec<_> =
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default()).collect();
    let (last, rest) = lines.split_last().context("no lines")?;
    assert_eq!(*last, "end");
    for (number, line) in rest.iter().enumerate() {
        ensure!(*line == format!("line {number}"), "line {number} is {line:?}");
    }
    assert_eq!(rest.len(), 3000);
    let error =
        bed.runtime.reopen_container_log(ReopenContainerLogRequest { container_id: id }).await;
    assert_eq!(error.err().context("reopened")?.code(), tonic::Code::FailedPrecondition);
    bed.remove_pod(&pod).await?;
    bed.end().await
}
