use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;

use super::*;

/// The lines of a log, each as a record with a header, through the reader.
fn kills(lines: &[&str]) -> Vec<SystemKill> {
    let mut log = KernelLog::default();
    let records = lines.iter().map(|line| format!("4,1234,25765197742,-;{line}\n"));
    records.filter_map(|record| log.read(record.as_bytes())).collect()
}

fn kill(process: &str, pid: u32) -> SystemKill {
    SystemKill { process: process.to_owned(), pid }
}

#[test]
fn oom_system_kill_names_the_victim() {
    let tables: [(&str, &[&str], SystemKill); 5] = [
        (
            "6.12, asked for by sysrq",
            &[
                "kworker/1:2 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=-1, oom_score_adj=0",
                "CPU: 1 UID: 0 PID: 62 Comm: kworker/1:2 Not tainted 6.12.107+deb13-cloud-amd64 #1",
                "Mem-Info:",
                "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
                "[    871]     0   871     1107      448        0      448         0    45056        0          1000 sleep",
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/kubepods.slice/kubepods-besteffort.slice/x.scope,task=sleep,pid=871,uid=0",
                "Out of memory: Killed process 871 (sleep) total-vm:4428kB, anon-rss:0kB, file-rss:1792kB, shmem-rss:0kB, UID:0 pgtables:44kB oom_score_adj:1000",
            ],
            kill("sleep", 871),
        ),
        (
            "5.4, a cpuset's nodes",
            &[
                "stress invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
                "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=abc,mems_allowed=1,global_oom,task_memcg=/user.slice,task=stress,pid=2737,uid=1000",
                "Out of memory: Killed process 2737 (stress) total-vm:10489464kB, anon-rss:7929632kB, file-rss:4kB, shmem-rss:0kB, UID:1000 pgtables:20452kB oom_score_adj:0",
            ],
            kill("stress", 2737),
        ),
        (
            "4.9, in two lines",
            &[
                "dockerd invoked oom-killer: gfp_mask=0x24201ca(GFP_HIGHUSER_MOVABLE|__GFP_COLD), nodemask=0, order=0, oom_score_adj=-500",
                "Out of memory: Kill process 19667 (evil-program2) score 1 or sacrifice child",
                "Killed process 19667 (evil-program2) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB, shmem-rss:0kB",
            ],
            kill("evil-program2", 19667),
        ),
        (
            "3.10, with the user before the name",
            &[
                "java invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0",
                "Killed process 11686, UID 48, (java) total-vm:4438060kB, anon-rss:1400000kB, file-rss:0kB",
            ],
            kill("java", 11686),
        ),
        (
            "a name with brackets",
            &[
                "(sd-pam) invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=100",
                "Out of memory: Killed process 7 ((a b) (c)) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:4kB oom_score_adj:0",
            ],
            kill("(a b) (c)", 7),
        ),
    ];
    for (name, lines, expected) in tables {
        assert_eq!(kills(lines), [expected], "{name}");
    }
}

#[test]
fn oom_cgroup_kill_is_not_a_system_kill() {
    let tables: [(&str, &[&str]); 5] = [
        (
            "6.x on cgroup v2, as a group",
            &[
                "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984",
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-0f.scope,mems_allowed=0,oom_memcg=/kubepods.slice/kubepods-pod1.slice/cri-containerd-0f.scope,task_memcg=/kubepods.slice/kubepods-pod1.slice/cri-containerd-0f.scope,task=tail,pid=1842,uid=0",
                "Memory cgroup out of memory: Killed process 1842 (tail) total-vm:70548kB, anon-rss:64512kB, file-rss:1280kB, shmem-rss:0kB, UID:0 pgtables:180kB oom_score_adj:984",
                "Tasks in /kubepods.slice/kubepods-pod1.slice/cri-containerd-0f.scope are going to be killed due to memory.oom.group set",
                "Memory cgroup out of memory: Killed process 1800 (sh) total-vm:4420kB, anon-rss:128kB, file-rss:1792kB, shmem-rss:0kB, UID:0 pgtables:48kB oom_score_adj:984",
            ],
        ),
        (
            "5.x on cgroup v1, the pod's own limit",
            &[
                "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=-997",
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/kubepods/poda,b,task_memcg=/kubepods/poda,b/c,task=stress,pid=61,uid=0",
                "Memory cgroup out of memory: Killed process 61 (stress) total-vm:1kB, anon-rss:1kB",
            ],
        ),
        (
            "4.x",
            &[
                "evil-program2 invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0",
                "Task in /mem2 killed as a result of limit of /mem3",
                "Memory cgroup out of memory: Kill process 1 (evil-program2) score 1001 or sacrifice child",
                "Killed process 1 (evil-program2) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB",
            ],
        ),
        (
            "without the line that names the cgroup",
            &[
                "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
                "Memory cgroup out of memory: Killed process 61 (stress) total-vm:1kB, anon-rss:1kB",
            ],
        ),
        (
            "a victim that nobody asked for",
            &["Out of memory: Killed process 61 (stress) total-vm:1kB, anon-rss:1kB"],
        ),
    ];
    for (name, lines) in tables {
        assert_eq!(kills(lines), [], "{name}");
    }
}

#[test]
fn oom_each_invocation_has_one_victim() {
    let call = "a invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=0";
    let first = "Out of memory: Killed process 1 (a) total-vm:1kB";
    let member = "Out of memory: Killed process 2 (b) total-vm:1kB";
    let nobody = "Out of memory and no killable processes...";
    assert_eq!(kills(&[call, first, member]), [kill("a", 1)]);
    assert_eq!(kills(&[call, nobody, call, first, call, member]), [kill("a", 1), kill("b", 2)]);
}

#[test]
fn oom_log_gap_discards_a_partial_kill() {
    let mut log = KernelLog::default();
    assert_eq!(log.read(b"4,1,1,-;a invoked oom-killer: order=0"), None);
    log.gap();
    assert_eq!(log.read(b"3,9,2,-;Out of memory: Killed process 1 (a) total-vm:1kB"), None);
}

#[test]
fn oom_log_record_properties_are_ignored() {
    let mut log = KernelLog::default();
    for record in [
        &b"4,1,1,-;text\n DEVICE=x invoked oom-killer:\n"[..],
        b"a invoked oom-killer: no header",
        b"",
    ] {
        log.read(record);
    }
    assert_eq!(log.read(b"4,1,1,-;Killed process 1 (a) total-vm:1kB"), None);
}

proptest! {
    #[test]
    fn oom_log_parser_never_panics(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        let mut log = KernelLog::default();
        for record in records {
            log.read(&record);
        }
    }

    #[test]
    fn oom_log_parser_accepts_truncated_lines(words in prop::collection::vec(prop::sample::select(vec![
        "4,1,1,-;", "a invoked oom-killer:", "oom-kill:constraint=", ",oom_memcg=", "/", ",task_memcg=",
        "Task in ", " killed as a result of limit of ", "Killed process ", "99999999999999999999",
        "7", " ", "(", ")", "ü", "Memory cgroup out of memory", ";", "\n",
    ]), 0..30)) {
        let mut log = KernelLog::default();
        for record in words.concat().split_inclusive('\n') {
            if let Some(kill) = log.read(record.as_bytes()) {
                prop_assert!(kill.pid > 0 && !kill.process.is_empty());
            }
        }
    }
}

/// A socket gives a message a read, as the kernel's log gives a record.
#[tokio::test]
async fn oom_log_is_followed() {
    let (log, kernel) = UnixDatagram::pair().unwrap();
    log.set_nonblocking(true).unwrap();
    let log = File::from(OwnedFd::from(log));
    let (sender, mut kills) = tokio::sync::mpsc::unbounded_channel();
    let following = tokio::spawn(follow(log, move |kill| sender.send(kill).unwrap()));
    for pid in 1..=3 {
        kernel.send(b"4,1,1,-;a invoked oom-killer: order=0").unwrap();
        let line = format!("3,2,1,-;Out of memory: Killed process {pid} (a) total-vm:1kB");
        kernel.send(line.as_bytes()).unwrap();
        assert_eq!(kills.recv().await, Some(kill("a", pid)));
    }
    // An empty message reads as an end.
    kernel.send(b"").unwrap();
    following.await.unwrap().unwrap();
}

#[tokio::test]
async fn oom_missing_log_is_an_error() {
    assert_eq!(open(Path::new("/nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
}
