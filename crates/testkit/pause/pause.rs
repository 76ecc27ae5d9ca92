//! The sandbox container's only process: it holds the pod's namespaces open, reaps orphans that
//! are handed to it as PID 1, and leaves with 0 on SIGINT or SIGTERM.
//!
//! It has no library at all, so that an image of it is a few KiB and a sandbox costs one page or
//! two. `build.rs` compiles it with a direct call of rustc.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
mod nr {
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const EXIT: usize = 231;
    pub(crate) const SIGPROCMASK: usize = 14;
    pub(crate) const SIGTIMEDWAIT: usize = 128;
}

#[cfg(target_arch = "aarch64")]
mod nr {
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const EXIT: usize = 94;
    pub(crate) const SIGPROCMASK: usize = 135;
    pub(crate) const SIGTIMEDWAIT: usize = 137;
}

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
/// The size of the kernel's signal set, in bytes.
const SIGSET_SIZE: usize = 8;

// The kernel starts a program with the stack aligned and no return address: go on to Rust.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor %ebp, %ebp", "call {main}", main = sym main, options(att_syntax));
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "bl {main}", main = sym main);

/// # Safety
/// `number` must be a system call that takes these arguments and writes no memory of ours.
unsafe fn syscall(number: usize, args: [usize; 4]) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention, clobbers are named.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            lateout("rcx") _, lateout("r11") _, options(nostack));
        #[cfg(target_arch = "aarch64")]
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], options(nostack));
    }
    result
}

extern "C" fn main() -> ! {
    let signals: u64 = [SIGINT, SIGTERM, SIGCHLD].iter().fold(0, |set, s| set | 1 << (s - 1));
    let set = &raw const signals as usize;
    // SAFETY: `set` outlives every call; no call gets a pointer to write through.
    unsafe {
        // Blocked and then waited for: no handler, no race, no wake-up but for a signal.
        syscall(nr::SIGPROCMASK, [SIG_BLOCK, set, 0, SIGSET_SIZE]);
        loop {
            match syscall(nr::SIGTIMEDWAIT, [set, 0, 0, SIGSET_SIZE]) {
                SIGCHLD => while syscall(nr::WAIT4, [usize::MAX, 0, WNOHANG, 0]) > 0 {},
                SIGINT | SIGTERM => break,
                _ => {}
            }
        }
        loop {
            syscall(nr::EXIT, [0; 4]);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
