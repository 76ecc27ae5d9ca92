//! What is there of a log, read back over all its files.

use super::*;
use crate::Stream;
use proptest::prelude::*;

#[tokio::test]
async fn log_options_select_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let log = [
        line(1, "stdout", "F", "one"),
        line(2, "stderr", "P", "tw"),
        line(3, "stderr", "F", "o"),
        line(4, "stdout", "F", "three"),
    ];
    fs::write(&path, log.concat()).unwrap();
    let all = Options::default();
    let time = |second: u64| format!("2024-01-01T00:00:{second:02}.500000000Z");
    for (options, expected) in [
        (all.clone(), "one\ntwo\nthree\n".to_owned()),
        (Options { tail: Some(1), ..all.clone() }, "three\n".to_owned()),
        (Options { tail: Some(0), ..all.clone() }, String::new()),
        (Options { tail: Some(100), ..all.clone() }, "one\ntwo\nthree\n".to_owned()),
        (Options { limit: Some(5), ..all.clone() }, "one\nt".to_owned()),
        (Options { limit: Some(100), ..all.clone() }, "one\ntwo\nthree\n".to_owned()),
        (
            Options { since: Some("2024-01-01T00:00:04Z".parse().unwrap()), ..all.clone() },
            "three\n".to_owned(),
        ),
        (
            Options { since: Some("2024-01-01T00:00:04.5Z".parse().unwrap()), ..all.clone() },
            "three\n".to_owned(),
        ),
        (Options { stream: Some(Stream::Stderr), ..all.clone() }, "two\n".to_owned()),
        (
            Options { timestamps: true, ..all.clone() },
            format!("{} one\n{} two\n{} three\n", time(1), time(2), time(4)),
        ),
        (Options { timestamps: true, limit: Some(7), ..all.clone() }, "2024-01".to_owned()),
    ] {
        assert_eq!(read(&path, &options).await, expected, "{options:?}");
    }
    // what has no end is sent without one
    fs::write(&path, &log.concat()[..60]).unwrap();
    assert_eq!(read(&path, &all).await, "one\n");
    fs::write(&path, format!("{}{}", log[0], log[3].trim_end())).unwrap();
    assert_eq!(read(&path, &all).await, "one\nthree");
    // a link leads to it
    let link = directory.path().join("link.log");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(read(&link, &all).await, "one\nthree");
}

#[tokio::test]
async fn log_tail_over_many_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let long = "x".repeat(1000);
    let log: String = (0..500).map(|n| plain(&format!("{n} {long}"))).collect();
    fs::write(&path, log).unwrap();
    for lines in [1, 2, 63, 64, 65, 66, 499, 500, 501] {
        let text = read(&path, &Options { tail: Some(lines), ..Options::default() }).await;
        assert_eq!(text.lines().count() as u64, lines.min(500));
        assert!(text.starts_with(&format!("{} ", 500 - lines.min(500))), "{lines}");
    }
}

/// Three rotated files and what a rotation that was killed leaves; lines 0 to 39.
fn history(log: &Path) {
    let lines = |range: std::ops::Range<u64>| -> String {
        range.map(|n| line(n, "stdout", "F", &n.to_string())).collect()
    };
    write_rotated(log, "20240101-000010", true, &lines(0..10));
    write_rotated(log, "20240101-000020", true, &lines(10..20));
    write_rotated(log, "20240101-000020", false, &lines(10..20));
    write_rotated(log, "20240101-000030", false, &lines(20..30));
    fs::write(format!("{}.20240101-000030.tmp", log.display()), "half").unwrap();
    fs::write(format!("{}.old", log.display()), plain("somebody else's")).unwrap();
    fs::write(log.with_file_name("10.log"), plain("another's")).unwrap();
    fs::write(log, lines(30..40)).unwrap();
}

fn numbers(range: std::ops::Range<u64>) -> String {
    range.map(|n| format!("{n}\n")).collect()
}

#[tokio::test]
async fn log_read_spans_rotated_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    history(&path);
    let all = Options::default();
    assert_eq!(read(&path, &all).await, numbers(0..40));
    for tail in 0..45 {
        let text = read(&path, &Options { tail: Some(tail), ..all.clone() }).await;
        assert_eq!(text, numbers(40_u64.saturating_sub(tail)..40), "the last {tail}");
    }
    for second in 0..45 {
        let since = format!("2024-01-01T00:00:{second:02}Z").parse().unwrap();
        let text = read(&path, &Options { since: Some(since), ..all.clone() }).await;
        assert_eq!(text, numbers(second..40.max(second)), "since second {second}");
    }
    assert_eq!(
        read(&path, &Options { limit: Some(30), ..all.clone() }).await,
        numbers(0..40)[..30]
    );
    let both = Options {
        tail: Some(25),
        since: Some("2024-01-01T00:00:12Z".parse().unwrap()),
        ..all.clone()
    };
    assert_eq!(read(&path, &both).await, numbers(15..40));
    // the runtime has yet to begin a new one
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&path, &all).await, numbers(0..30));
    assert_eq!(read(&path, &Options { tail: Some(3), ..all.clone() }).await, numbers(27..30));
}

#[tokio::test]
async fn log_read_skips_damaged_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    history(&path);
    let packed = directory.path().join("0.log.20240101-000020.gz");
    fs::write(&packed, "no gzip at all").unwrap();
    fs::write(directory.path().join("0.log.20240101-000010.gz"), "").unwrap();
    assert_eq!(read(&path, &Options::default()).await, numbers(20..40));
    let tail = Options { tail: Some(35), ..Options::default() };
    assert_eq!(read(&path, &tail).await, numbers(20..40));
}

#[tokio::test]
async fn log_lines_continue_over_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let first = plain("a") + &line(1, "stdout", "P", "one ");
    write_rotated(&path, "20240101-000010", true, &first);
    write_rotated(
        &path,
        "20240101-000020",
        false,
        &(line(2, "stdout", "F", "line") + plain("cut").trim_end()),
    );
    fs::write(&path, plain("b")).unwrap();
    assert_eq!(read(&path, &Options::default()).await, "a\none line\ncut\nb\n");
}

#[tokio::test]
async fn log_missing_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().canonicalize().unwrap();
    for (log, missing) in [("0.log", "0.log"), ("no/such/0.log", "no")] {
        let (log, missing) = (dir.join(log), dir.join(missing));
        let error = Log::open(&log, &Options::default()).await.err().unwrap();
        let expected = format!(
            "failed to try resolving symlinks in path {log:?}: lstat {}: no such file or directory",
            missing.display()
        );
        assert_eq!(error.to_string(), expected);
    }
    let error = Log::open(&dir, &Options::default()).await.err();
    assert!(error.is_none_or(|error| error.to_string().starts_with("failed to open")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However the lines of a log lie in files, the last of them are the same.
    #[test]
    fn log_read_is_independent_of_file_boundaries(files in proptest::collection::vec((0usize..6, any::<bool>()), 1..6), tail in 0u64..30) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut lines = Vec::new();
        let last = files.len() - 1;
        for (index, (count, packed)) in files.into_iter().enumerate() {
            let new: Vec<String> = (0..count).map(|n| format!("{index}.{n}")).collect();
            let content: String = new.iter().map(|text| plain(text)).collect();
            match index == last {
                true => fs::write(&path, content).unwrap(),
                false => drop(write_rotated(&path, &format!("20240101-0000{index:02}"), packed, &content)),
            }
            lines.extend(new.iter().map(|text| format!("{text}\n")));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let wanted = lines.len().saturating_sub(usize::try_from(tail).unwrap());
        let text = runtime.block_on(read(&path, &Options { tail: Some(tail), ..Options::default() }));
        prop_assert_eq!(text, lines[wanted..].concat());
        prop_assert_eq!(runtime.block_on(read(&path, &Options::default())), lines.concat());
    }
}
