use proptest::prelude::*;

use super::*;

const DONE: u16 = 3;

/// A reply as the kernel writes it: it differs from a request only in its flags.
fn answer(kind: u16, attributes: &[Attribute]) -> Vec<u8> {
    request(kind, 0, 7, [1, 2, 3, 4], attributes)
}

fn code(code: i32) -> Vec<u8> {
    request(DONE, 0, 7, code.to_ne_bytes(), &[])
}

fn read(bytes: &[u8]) -> io::Result<(bool, Vec<Vec<u8>>)> {
    let mut seen = Vec::new();
    let last = replies(bytes, 7, &mut |head: &Subheader<4>, attributes: &[u8]| {
        assert_eq!(head, &[1, 2, 3, 4]);
        seen.push(attributes.to_vec());
    })?;
    Ok((last, seen))
}

#[test]
fn netlink_attributes_round_trip_and_nest() {
    let inner = vec![Attribute::text(5, "abc"), Attribute::Bytes(6, vec![1])];
    let bytes = answer(20, &[Attribute::Bytes(1, vec![9; 3]), Attribute::Nest(2, inner)]);
    assert_eq!(bytes.len() % 4, 0);
    let (last, seen) = read(&bytes).unwrap();
    assert!(!last, "there may be more");
    assert_eq!(attribute(&seen[0], 1), Some(&[9; 3][..]));
    let nest = attribute(&seen[0], 2).unwrap();
    assert_eq!(attribute(nest, 5), Some(&b"abc\0"[..]));
    assert_eq!(attribute(nest, 6), Some(&[1][..]));
    assert_eq!(attribute(nest, 7), None);
}

#[test]
fn netlink_last_reply_has_the_result() {
    let some = [answer(20, &[]), answer(20, &[]), code(0)].concat();
    assert_eq!(read(&some).unwrap(), (true, vec![Vec::new(); 2]));
    let refused = [answer(20, &[]), code(-3)].concat();
    assert_eq!(read(&refused).unwrap_err().raw_os_error(), Some(3));
    assert!(read(&request(DONE, 0, 7, [0; 2], &[])).is_err(), "it says nothing");
    let others = [request(20, 0, 6, [9; 4], &[]), request(DONE, 0, 6, [0xff; 4], &[])].concat();
    assert_eq!(read(&others).unwrap(), (false, Vec::new()), "of a request that was given up");
    assert!(read(&request(20, 0, 7, [1, 2], &[])).is_err(), "not even a subheader");
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes: Vec<u8>, cut in 0_usize..60) {
        let _ = replies(&bytes, 7, &mut |_: &Subheader<4>, bytes: &[u8]| {
            attributes(bytes).for_each(drop);
        });
        attributes(&bytes).for_each(drop);
        let whole = answer(20, &[Attribute::text(1, "some text"), Attribute::Bytes(2, bytes)]);
        let _ = replies(&whole[..cut.min(whole.len())], 7, &mut |_: &Subheader<4>, _: &[u8]| ());
    }
}
