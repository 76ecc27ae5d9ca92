//! `/debug/pprof/`: profiles in the format and under the names that Go's programs have them, for
//! `go tool pprof`.
//!
//! Current limitations: there is nothing that unwinds stacks of a running process and is safe in a signal
//! handler. So a profile says which threads used the CPU, in the program or in the kernel, and how much
//! memory is allocated, but not by which function: `perf` tells that, as the binaries have symbols. Blocking
//! and locks are not recorded, and there is no trace.

mod encoding;
mod threads;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use longshore_base::{memory, panics};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use self::encoding::{Profile, Sample, ValueType};
use self::threads::{Thread, Usage, threads};

/// Where the pages are.
pub const PROFILES: &str = "/debug/pprof/";
/// How long a profile of the CPU takes, unless the request says it.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);
/// The longest.
const MAX_DURATION: Duration = Duration::from_secs(600);
/// How often threads are looked at meanwhile: one that begins and ends between two looks is missed.
const INTERVAL: Duration = Duration::from_millis(100);
/// A flag that holds a secret.
const SECRET_FLAG: &str = "--manifest-url-header";

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const BINARY: &str = "application/octet-stream";

/// The pages, with what they are about.
const PAGES: [(&str, &str); 10] = [
    ("allocs", "The memory that the program has allocated"),
    ("block", "Not recorded: always empty"),
    ("cmdline", "The command line of the program"),
    ("goroutine", "The tasks of the program in number, and its threads"),
    ("heap", "The memory that the program has allocated, and what of it is resident"),
    ("mutex", "Not recorded: always empty"),
    ("profile", "The CPU time of each thread during the time of the parameter seconds"),
    ("symbol", "Names of functions by addresses: there are none in these profiles"),
    ("threadcreate", "The threads of the program"),
    ("trace", "Not available"),
];

/// The pages of one program. One profile of the CPU is made at a time.
#[derive(Debug, Default)]
pub struct Profiles {
    profiling: Mutex<()>,
}

/// A page.
#[derive(Debug, PartialEq, Eq)]
pub struct ProfilePage {
    status: StatusCode,
    content_type: &'static str,
    /// Under which name it is saved; `None`: it is shown.
    file_name: Option<&'static str>,
    body: Vec<u8>,
}

impl ProfilePage {
    fn new(status: StatusCode, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, file_name: None, body: body.into() }
    }

    fn text(text: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, TEXT, text.into())
    }

    fn file(file_name: &'static str, profile: &Profile) -> Self {
        let page = Self::new(StatusCode::OK, BINARY, profile.encode());
        Self { file_name: Some(file_name), ..page }
    }

    fn error(status: StatusCode, why: &str) -> Self {
        Self::new(status, TEXT, format!("{why}\n"))
    }

    /// The page as a response.
    pub fn into_response<B: From<Vec<u8>>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let disposition = self.file_name.map(|name| format!("attachment; filename=\"{name}\""));
        if let Some(value) = disposition.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(CONTENT_DISPOSITION, value);
        }
        if !self.status.is_success() {
            headers.insert("x-go-pprof", HeaderValue::from_static("1"));
        }
        response
    }
}

/// The parameters of a request that pages know. What is not a number is as good as not given.
#[derive(Debug, Default, PartialEq)]
struct Parameters {
    /// Above 0: the page is for people.
    debug: u32,
    seconds: Option<f64>,
}

impl Parameters {
    fn of(query: &str) -> Self {
        let mut own = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "debug" => own.debug = value.parse().unwrap_or(0),
                "seconds" => own.seconds = value.parse().ok(),
                _ => {}
            }
        }
        own
    }

    fn duration(&self) -> Duration {
        let given = self.seconds.filter(|seconds| *seconds > 0.0);
        let given = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        given.unwrap_or(DEFAULT_DURATION).min(MAX_DURATION)
    }
}

impl Profiles {
    /// The page of that name, which follows [`PROFILES`] in the path. `query`: as in the URL, or empty.
    pub async fn page(&self, name: &str, query: &str) -> ProfilePage {
        let parameters = Parameters::of(query);
        match name {
            "" => ProfilePage::new(StatusCode::OK, HTML, index()),
            "cmdline" => ProfilePage::text(command_line(std::env::args())),
            "symbol" => ProfilePage::text("num_symbols: 0\n"),
            "profile" => self.cpu(parameters.duration()).await,
            "heap" | "allocs" => heap(parameters.debug > 0),
            "goroutine" => with_threads(move |all| tasks(&all, parameters.debug > 0)).await,
            "threadcreate" => {
                with_threads(move |all| thread_counts(&all, parameters.debug > 0)).await
            }
            "block" | "mutex" => contention(name, parameters.debug > 0),
            "trace" => ProfilePage::error(StatusCode::NOT_IMPLEMENTED, "there is no trace"),
            _ => ProfilePage::error(StatusCode::NOT_FOUND, "Unknown profile"),
        }
    }

    /// The CPU time of each thread during that time.
    async fn cpu(&self, duration: Duration) -> ProfilePage {
        let Ok(_alone) = self.profiling.try_lock() else {
            let why = "Could not enable CPU profiling: cpu profiling already in use";
            return ProfilePage::error(StatusCode::INTERNAL_SERVER_ERROR, why);
        };
        let (began, at) = (Instant::now(), Timestamp::now());
        let mut seen = Seen::default();
        let end = began.checked_add(duration).unwrap_or(began);
        loop {
            let now = Instant::now();
            match panics::blocking(threads).await {
                Ok(all) => seen.look(all),
                Err(panicked) => {
                    let why = format!("Could not enable CPU profiling: {panicked}");
                    return ProfilePage::error(StatusCode::INTERNAL_SERVER_ERROR, &why);
                }
            }
            if now >= end {
                break;
            }
            sleep_until(now.checked_add(INTERVAL).unwrap_or(end).min(end)).await;
        }
        ProfilePage::file("profile", &seen.profile(at, began.elapsed()))
    }
}

/// Threads with their CPU time when they were first and last seen.
#[derive(Default)]
struct Seen {
    has_looked: bool,
    threads: HashMap<u32, (Usage, Thread)>,
}

impl Seen {
    fn look(&mut self, all: Vec<Thread>) {
        for thread in all {
            // one that is new has used what it has used since the last look
            let before = if self.has_looked { Usage::default() } else { thread.usage };
            let (_, last) =
                self.threads.entry(thread.id).or_insert_with(|| (before, thread.clone()));
            *last = thread;
        }
        self.has_looked = true;
    }

    /// PURE: threads of the same name together.
    fn profile(&self, at: Timestamp, duration: Duration) -> Profile {
        let mut used: BTreeMap<(&str, &'static str), Duration> = BTreeMap::new();
        for (first, last) in self.threads.values() {
            let user = last.usage.user.saturating_sub(first.user);
            let kernel = last.usage.kernel.saturating_sub(first.kernel);
            for (mode, time) in [("user code", user), ("kernel", kernel)] {
                let sum = used.entry((last.name.as_str(), mode)).or_default();
                *sum = sum.saturating_add(time);
            }
        }
        let used = used.into_iter().filter(|(_, time)| !time.is_zero());
        let samples = used.map(|((thread, mode), time)| Sample {
            stack: vec![mode.to_owned(), format!("thread {thread}")],
            values: vec![in_ticks(time), nanoseconds(time)],
        });
        Profile {
            types: vec![
                ValueType { kind: "samples", unit: "count" },
                ValueType { kind: "cpu", unit: "nanoseconds" },
            ],
            samples: samples.collect(),
            period: Some((
                ValueType { kind: "cpu", unit: "nanoseconds" },
                nanoseconds(threads::TICK),
            )),
            at: i64::try_from(at.as_nanosecond()).unwrap_or(0),
            duration: nanoseconds(duration),
        }
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn in_ticks(time: Duration) -> i64 {
    i64::try_from(time.as_millis().checked_div(threads::TICK.as_millis()).unwrap_or(0))
        .unwrap_or(i64::MAX)
}

async fn with_threads(page: impl FnOnce(Vec<Thread>) -> ProfilePage) -> ProfilePage {
    match panics::blocking(threads).await {
        Ok(all) => page(all),
        Err(panicked) => {
            ProfilePage::error(StatusCode::INTERNAL_SERVER_ERROR, &panicked.to_string())
        }
    }
}

/// The memory of the program: what it has allocated, and what is resident.
fn heap(for_people: bool) -> ProfilePage {
    let (allocated, resident) = (memory::allocated(), memory::resident());
    if for_people {
        return ProfilePage::text(format!(
            "heap profile: allocations are not recorded one by one\n\n\
             # HeapAlloc = {allocated}\n# Resident = {resident}\n"
        ));
    }
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let sample =
        |what: &str, bytes| Sample { stack: vec![what.to_owned()], values: vec![1, bytes] };
    ProfilePage::file(
        "heap",
        &Profile {
            types: vec![
                ValueType { kind: "inuse_objects", unit: "count" },
                ValueType { kind: "inuse_space", unit: "bytes" },
            ],
            samples: vec![
                sample("allocated", signed(allocated)),
                sample("code, stacks and free memory", signed(resident.saturating_sub(allocated))),
            ],
            at: i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0),
            ..Profile::default()
        },
    )
}

/// The tasks of the runtime, which take the place of goroutines, and the threads.
fn tasks(threads: &[Thread], for_people: bool) -> ProfilePage {
    let metrics = Handle::current().metrics();
    let (alive, workers) = (metrics.num_alive_tasks(), metrics.num_workers());
    if for_people {
        let queued = metrics.global_queue_depth();
        let head = format!(
            "goroutine profile: total {alive}\n{alive} tasks on {workers} workers, {queued} of them queued\n\n"
        );
        return ProfilePage::text(head + &listed(threads));
    }
    let alive = i64::try_from(alive).unwrap_or(i64::MAX);
    let sample = Sample { stack: vec!["tasks".to_owned()], values: vec![alive] };
    counts("goroutine", vec![sample])
}

fn thread_counts(threads: &[Thread], for_people: bool) -> ProfilePage {
    if for_people {
        let head = format!("threadcreate profile: total {}\n", threads.len());
        return ProfilePage::text(head + &listed(threads));
    }
    let mut by_name: BTreeMap<&str, i64> = BTreeMap::new();
    for thread in threads {
        let count = by_name.entry(&thread.name).or_default();
        *count = count.saturating_add(1);
    }
    let sample = |(name, count): (&str, i64)| Sample {
        stack: vec![format!("thread {name}")],
        values: vec![count],
    };
    counts("threadcreate", by_name.into_iter().map(sample).collect())
}

fn counts(name: &'static str, samples: Vec<Sample>) -> ProfilePage {
    let types = vec![ValueType { kind: name, unit: "count" }];
    ProfilePage::file(name, &Profile { types, samples, ..Profile::default() })
}

/// A line for each thread.
fn listed(threads: &[Thread]) -> String {
    threads.iter().fold(String::new(), |mut text, thread| {
        let Thread { id, name, state, waits_in, usage } = thread;
        // writing to a String cannot fail
        let _ = writeln!(
            text,
            "thread {id} {name:?} [{state}]: user {:?}, kernel {:?}, waits in {waits_in}",
            usage.user, usage.kernel
        );
        text
    })
}

/// Profiles of what is not recorded.
fn contention(name: &str, for_people: bool) -> ProfilePage {
    if for_people {
        let head = if name == "mutex" { "mutex" } else { "contention" };
        return ProfilePage::text(format!("--- {head}:\ncycles/second=1000000000\n"));
    }
    let types = vec![
        ValueType { kind: "contentions", unit: "count" },
        ValueType { kind: "delay", unit: "nanoseconds" },
    ];
    let file_name = if name == "mutex" { "mutex" } else { "block" };
    ProfilePage::file(file_name, &Profile { types, ..Profile::default() })
}

fn index() -> String {
    let rows: String = PAGES
        .iter()
        .map(|(name, what)| {
            let debug = if matches!(*name, "cmdline" | "profile" | "symbol" | "trace") {
                ""
            } else {
                "?debug=1"
            };
            format!("<tr><td><a href=\"{name}{debug}\">{name}</a></td><td>{what}</td></tr>\n")
        })
        .collect();
    format!(
        "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/<br>\n<table>\n{rows}</table>\n\
         <a href=\"goroutine?debug=2\">all threads</a></body></html>\n"
    )
}

/// The arguments separated by zero bytes, without secrets.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let mut is_secret = false;
    let args = args.map(|arg| {
        let masks = std::mem::take(&mut is_secret);
        is_secret = arg == SECRET_FLAG;
        match arg.strip_prefix(SECRET_FLAG) {
            Some(rest) if rest.starts_with('=') => format!("{SECRET_FLAG}=<masked>"),
            _ if masks => "<masked>".to_owned(),
            _ => arg,
        }
    });
    args.collect::<Vec<_>>().join("\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiling_command_line_redacts_secrets() {
        let args = ["kubelet", "--manifest-url-header=A:s", "--manifest-url-header", "A:s", "-v=2"];
        assert_eq!(
            command_line(args.into_iter().map(str::to_owned)),
            "kubelet\0--manifest-url-header=<masked>\0--manifest-url-header\0<masked>\0-v=2"
        );
    }

    #[test]
    fn profiling_parameters_are_bounded() {
        let of = |query| Parameters::of(query);
        assert_eq!(of("").duration(), DEFAULT_DURATION);
        assert_eq!(of("seconds=2.5&debug=2"), Parameters { debug: 2, seconds: Some(2.5) });
        assert_eq!(of("seconds=2.5").duration(), Duration::from_millis(2500));
        for (query, expected) in [
            ("seconds=0", DEFAULT_DURATION),
            ("seconds=-1", DEFAULT_DURATION),
            ("seconds=NaN", DEFAULT_DURATION),
            ("seconds=x", DEFAULT_DURATION),
            ("seconds=inf", DEFAULT_DURATION),
            ("seconds=1e300", DEFAULT_DURATION),
            ("seconds=1e9", MAX_DURATION),
        ] {
            assert_eq!(of(query).duration(), expected, "{query}");
        }
    }

    fn thread(id: u32, name: &str, user: u64, kernel: u64) -> Thread {
        let usage =
            Usage { user: Duration::from_millis(user), kernel: Duration::from_millis(kernel) };
        Thread { id, name: name.to_owned(), state: 'S', waits_in: "0".to_owned(), usage }
    }

    #[test]
    fn profiling_of_the_cpu_adds_up_threads_of_a_name() {
        let mut seen = Seen::default();
        seen.look(vec![thread(1, "a", 100, 50), thread(2, "b", 10, 0)]);
        seen.look(vec![thread(1, "a", 200, 80), thread(3, "a", 40, 0)]);
        seen.look(vec![thread(3, "a", 60, 0), thread(2, "b", 10, 0)]);
        let profile = seen.profile(Timestamp::UNIX_EPOCH, Duration::from_secs(1));
        let found: Vec<_> = profile
            .samples
            .iter()
            .map(|sample| (sample.stack.join("<"), sample.values[1] / 1_000_000))
            .collect();
        assert_eq!(
            found,
            [("kernel<thread a".to_owned(), 30), ("user code<thread a".to_owned(), 160)]
        );
        assert_eq!(profile.duration, 1_000_000_000);
    }

    #[tokio::test]
    async fn profiling_pages_are_those_of_go() {
        let own = Profiles::default();
        let page = async |path: &str| {
            let (name, query) = path.split_once('?').unwrap_or((path, ""));
            let response = own.page(name, query).await.into_response::<Vec<u8>>();
            let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let saved = response.headers().contains_key(CONTENT_DISPOSITION);
            let text = String::from_utf8_lossy(response.body()).into_owned();
            (response.status().as_u16(), kind, saved, text)
        };
        for (name, _) in
            PAGES.iter().filter(|(name, _)| !["trace", "cmdline", "symbol"].contains(name))
        {
            let (status, kind, saved, body) = page(&format!("{name}?seconds=0.01")).await;
            assert_eq!((status, kind.as_str(), saved), (200, BINARY, true), "{name}");
            assert!(!body.is_empty());
        }
        for (path, expected) in [
            ("", "<a href=\"heap?debug=1\">heap</a>"),
            ("goroutine?debug=2", "goroutine profile: total "),
            ("threadcreate?debug=1", "threadcreate profile: total "),
            ("heap?debug=1", "# HeapAlloc = "),
            ("mutex?debug=1", "--- mutex:"),
            ("symbol", "num_symbols: 0"),
            ("cmdline", "longshore"),
        ] {
            let (status, _, saved, body) = page(path).await;
            assert!(status == 200 && !saved && body.contains(expected), "{path}: {body}");
        }
        assert_eq!(page("nothing").await.3, "Unknown profile\n");
        assert_eq!((page("nothing").await.0, page("trace").await.0), (404, 501));
        let (first, second) =
            tokio::join!(page("profile?seconds=0.2"), page("profile?seconds=0.2"));
        assert_eq!((first.0, second.0), (200, 500), "one at a time");
    }
}
