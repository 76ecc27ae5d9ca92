//! Chains and their use counts, read from nftables by netlink.

use std::io;

use longshore_netlink::{Attribute, NLM_F_ACK, NLM_F_DUMP, attribute};
use rustix::io::Errno;

use super::Table;
use crate::Family;
use crate::netlink::{Changes, NFTABLES, Netfilter};

/// `NFNLGRP_NFTABLES`: every change of tables, chains and rules.
const GROUP: u32 = 7;
/// `NFT_MSG_DELTABLE`
const DELETE_TABLE: u16 = NFTABLES | 2;
/// `NFT_MSG_GETCHAIN`
const GET_CHAIN: u16 = NFTABLES | 4;
/// Attributes of a table and a chain; the name of a table is the first of both.
const TABLE: u16 = 1;
const NAME: u16 = 3;
const USE: u16 = 6;

/// The names of a table's chains.
pub(super) async fn chains(family: Family, table: Table) -> io::Result<Vec<String>> {
    let mut chains = Vec::new();
    let each = |answer: &[u8]| {
        // The kernel dumps the chains of all tables.
        if text(answer, TABLE).is_some_and(|name| name == table.name()) {
            chains.extend(text(answer, NAME).map(str::to_owned));
        }
    };
    Netfilter::open()?.request(family, GET_CHAIN, NLM_F_DUMP, &[], each).await?;
    Ok(chains)
}

/// Whether a chain exists.
pub(super) async fn has_chain(family: Family, table: Table, chain: &str) -> io::Result<bool> {
    Ok(uses(&mut Netfilter::open()?, family, table, chain).await?.is_some())
}

/// How often a chain is used, by its own rules and by jumps to it; none if there is no such chain.
pub(super) async fn uses(
    kernel: &mut Netfilter,
    family: Family,
    table: Table,
    chain: &str,
) -> io::Result<Option<u32>> {
    let request = [Attribute::text(TABLE, table.name()), Attribute::text(NAME, chain)];
    let mut uses = None;
    let each = |answer: &[u8]| {
        uses = attribute(answer, USE).and_then(|it| it.try_into().ok()).map(u32::from_be_bytes);
    };
    match kernel.request(family, GET_CHAIN, NLM_F_ACK, &request, each).await {
        Ok(()) => Ok(uses),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a table with all that is in it; whether it was there.
pub(super) async fn delete_table(family: Family, table: &str) -> io::Result<bool> {
    let table = [Attribute::text(TABLE, table)];
    match Netfilter::open()?.change(family, DELETE_TABLE, &table).await {
        Ok(()) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Word of every change.
pub(super) fn changes() -> io::Result<Changes> {
    Changes::of(GROUP)
}

fn text(answer: &[u8], kind: u16) -> Option<&str> {
    std::str::from_utf8(attribute(answer, kind)?.strip_suffix(&[0])?).ok()
}
