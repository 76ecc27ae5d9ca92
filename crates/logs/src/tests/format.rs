//! The parser takes any bytes, in any pieces. Properties and a seeded mutation of real lines stand
//! in for a fuzzer, which needs a nightly compiler.

use proptest::prelude::*;

use crate::format::{Head, Parser, Part, Stream};

const TIME: &str = "2024-05-06T07:08:09.123456789Z";

/// What a log says, as one text with the heads marked, and the most that was held back of it.
fn take_apart(log: &[u8], chunk: usize) -> Vec<u8> {
    let (mut parser, mut text) = (Parser::default(), Vec::new());
    let mut take = |part: Part<'_>| {
        match part {
            Part::Head(head) => {
                let stream = if head.stream == Stream::Stdout { 'o' } else { 'e' };
                let partial = if head.partial { "+" } else { "" };
                text.extend(format!("[{stream}{partial}]").bytes());
            }
            Part::Text(piece) => text.extend(piece),
            Part::End => text.push(b'$'),
        }
        Ok::<_, ()>(())
    };
    for bytes in log.chunks(chunk.max(1)) {
        parser.feed(bytes, &mut take).unwrap();
    }
    text
}

fn read(log: &[u8], chunk: usize) -> String {
    String::from_utf8_lossy(&take_apart(log, chunk)).into_owned()
}

fn docker(text: &str) -> String {
    serde_json::json!({"log": text, "stream": "stderr", "time": TIME}).to_string() + "\n"
}

#[test]
fn log_format_lines_are_parsed() {
    for (log, expected) in [
        (format!("{TIME} stdout F hello world\n"), "[o]hello world$"),
        (format!("{TIME} stderr P half\n{TIME} stderr F  whole\n"), "[e+]half$[e] whole$"),
        (format!("{TIME} stdout F \n"), "[o]$"),
        (format!("{TIME} stdout F\n"), "[o]$"),
        (format!("{TIME} stdout P:x:y tagged\n"), "[o+]tagged$"),
        ("2024-05-06T07:08:09+02:00 stdout F zone\n".to_owned(), "[o]zone$"),
        (format!("{TIME} stdout F no end"), "[o]no end"),
        (format!("garbage\n{TIME} stdout F ok\n"), "[o]ok$"),
        (format!("{TIME} stdin F never\n\n\n{TIME} stdout F ok\n"), "[o]ok$"),
        (format!("{}\n{TIME} stdout F ok\n", "x".repeat(5000)), "[o]ok$"),
        (format!("{} {}\n{TIME} stdout F ok\n", "x".repeat(250), "y".repeat(9)), "[o]ok$"),
        (format!("when? stdout F never\n{TIME} stdout F ok\n"), "[o]ok$"),
        (format!("2024-13-45T99:00:00Z stdout F never\n{TIME} stdout F ok\n"), "[o]ok$"),
        (format!("0000-00-00T00:00:00Z stdout F never\n{TIME} stdout F ok\n"), "[o]ok$"),
        // Docker's
        (docker("hello \"world\"\n"), "[e]hello \"world\"$"),
        (docker("half") + &docker(" whole\n"), "[e+]half$[e] whole$"),
        (docker("\n"), "[e]$"),
        (docker(""), ""),
        (format!("{}{TIME} stdout F both\n", docker("one\n")), "[e]one$[o]both$"),
        (
            format!("{{\"log\":\"a\\ud800\\n\",\"stream\":\"stdout\",\"time\":\"{TIME}\"}}\n"),
            "[o]a\u{fffd}\u{fffd}\u{fffd}$",
        ),
        (
            format!(
                "{{\"log\":\"no time\\n\",\"stream\":\"stdout\"}}\n{{}}\n{{\n{}",
                docker("ok\n")
            ),
            "[e]ok$",
        ),
        (
            format!(
                "{{\"log\":7,\"stream\":\"stdout\",\"time\":\"{TIME}\"}}\n{{\"log\"\n{}",
                docker("ok\n")
            ),
            "[e]ok$",
        ),
    ] {
        for chunk in [1, 2, 7, 31, 1000, 100_000] {
            assert_eq!(read(log.as_bytes(), chunk), expected, "{log:?} by {chunk}");
        }
    }
}

#[test]
fn log_format_times_have_nine_digits() {
    for (written, expected) in [
        ("2024-05-06T07:08:09.123456789Z", "2024-05-06T07:08:09.123456789Z"),
        ("2024-05-06T07:08:09Z", "2024-05-06T07:08:09.000000000Z"),
        ("2024-05-06T07:08:09.5+02:00", "2024-05-06T07:08:09.500000000+02:00"),
        ("2024-05-06T07:08:09.12-11:30", "2024-05-06T07:08:09.120000000-11:30"),
        ("2024-05-06T07:08:09.5+00:00", "2024-05-06T07:08:09.500000000Z"),
    ] {
        let head = Head::new(written.as_bytes(), b"stdout", false).expect(written);
        let mut out = Vec::new();
        head.put_time(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

/// Of a line without end no more is held than its head, or the longest line that Docker writes.
#[test]
fn log_format_long_lines_are_not_buffered() {
    let mut parser = Parser::default();
    let mut longest = 0;
    let mut feed = |bytes: &[u8]| {
        let mut count = 0;
        let fed: Result<(), ()> = parser.feed(bytes, |part| {
            count += usize::from(matches!(part, Part::Text(_)));
            Ok(())
        });
        fed.unwrap();
        longest = longest.max(parser.held());
        count
    };
    let block = [b'x'; 16 * 1024];
    assert_eq!(feed(format!("{TIME} stdout F ").as_bytes()), 0);
    assert_eq!((0..64).map(|_| feed(&block)).sum::<usize>(), 64, "a mebibyte in pieces");
    feed(b"\n{\"log\":\"");
    assert_eq!((0..1024).map(|_| feed(&block)).sum::<usize>(), 0, "no text comes of it");
    feed(b"\n");
    assert_eq!((0..1024).map(|_| feed(&block)).sum::<usize>(), 0, "no text comes of it");
    assert_eq!(feed(format!("\n{TIME} stdout F and on\n").as_bytes()), 1);
    assert!(longest <= 512 * 1024, "{longest}");
    assert!(parser.held() <= 256, "{}", parser.held());
}

/// The pieces that make up lines, so that random ones come near to real ones.
fn scraps() -> impl Strategy<Value = Vec<u8>> {
    let scrap = prop_oneof![
        Just(TIME.as_bytes().to_vec()),
        Just(b" ".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"stdout".to_vec()),
        Just(b"stderr".to_vec()),
        Just(b" F ".to_vec()),
        Just(b" P ".to_vec()),
        Just(b"{\"log\":\"".to_vec()),
        Just(b"\\n\",\"stream\":\"stdout\",\"time\":\"".to_vec()),
        Just(b"\"}\n".to_vec()),
        Just(vec![0xff; 260]),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec(scrap, 0..40).prop_map(|scraps| scraps.concat())
}

proptest! {
    #[test]
    fn chunks_make_no_difference(log in proptest::collection::vec(any::<u8>(), 0..400), chunk in 1usize..50) {
        prop_assert_eq!(take_apart(&log, chunk), take_apart(&log, 1000));
    }

    #[test]
    fn nor_in_what_looks_like_a_log(log in scraps(), chunk in 1usize..50) {
        prop_assert_eq!(take_apart(&log, chunk), take_apart(&log, 100_000));
    }

    #[test]
    fn log_format_round_trip(lines in proptest::collection::vec("[^\n]{0,60}", 0..20), chunk in 1usize..200) {
        let log: String = lines.iter().map(|line| format!("{TIME} stdout F {line}\n")).collect();
        let expected: String = lines.iter().map(|line| format!("[o]{line}$")).collect();
        prop_assert_eq!(read(log.as_bytes(), chunk), expected);
    }

    #[test]
    fn log_format_docker_round_trip(lines in proptest::collection::vec("[^\n]{0,60}", 0..20), chunk in 1usize..200) {
        let log: String = lines.iter().map(|line| docker(&format!("{line}\n"))).collect();
        let expected: String = lines.iter().map(|line| format!("[e]{line}$")).collect();
        prop_assert_eq!(read(log.as_bytes(), chunk), expected);
    }
}

/// Flips, cuts and doubles bytes of real lines, the same ones in each run; what is whole behind them
/// always comes through.
#[test]
fn log_format_damage_is_limited_to_its_line() {
    let healthy = format!("{TIME} stdout F one\n{}{TIME} stderr P two\n", docker("three\n"));
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..20_000 {
        let mut log = healthy.clone().into_bytes();
        for _ in 0..=random(4) {
            if log.is_empty() {
                break;
            }
            let at = random(log.len());
            match random(4) {
                0 => log[at] = u8::try_from(random(256)).unwrap(),
                1 => drop(log.remove(at)),
                2 => log.insert(at, b" \n{\"\\"[random(5)]),
                _ => log.truncate(at.max(1)),
            }
        }
        log.push(b'\n');
        log.extend(format!("{TIME} stdout F the end\n").bytes());
        let chunk = 1 + random(40);
        let whole = take_apart(&log, log.len());
        assert_eq!(take_apart(&log, chunk), whole, "round {round}: {log:?} by {chunk}");
        assert!(whole.ends_with(b"[o]the end$"), "round {round}: {log:?}");
    }
}
