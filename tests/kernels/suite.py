"""Suite for kernels: the part of the mount suite where kernels differ, by feature.

A feature is a line in the table of docs/kernels.md. Tests of decisions of copperfs itself are left
out: they end alike under any kernel, and an emulated machine is some 15 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Feature:
    """In the words of the table. A test is module::function, with parameters if not all are meant,
    or a whole module."""

    name: str
    tests: tuple[str, ...]


# ruff: noqa: E501 - the names of tests
FEATURES = (
    Feature(
        "mounting, unmounting, a killed daemon",
        (
            "test_lifecycle::test_when_the_daemon_is_killed_readers_are_told_at_once_and_umount_cleans_up",
            "test_lifecycle::test_who_waits_when_the_daemon_is_killed_is_told_what_is_promised[read past the page cache-open/file-told3]",
            "test_lifecycle::test_an_ordinary_user_mounts_through_fusermount3",
        ),
    ),
    Feature(
        "attributes, kinds of files, statfs",
        (
            "test_semantics::test_attributes_are_the_sources",
            "test_semantics::test_statfs_counts",
        ),
    ),
    Feature(
        "listings and positions in them",
        (
            "test_semantics::test_a_directory_can_be_read_from_any_place_that_telldir_named",
            "test_directory_walks::test_a_walk_gives_what_was_there_all_the_time_once_while_others_remove_names[cleared]",
        ),
    ),
    Feature(
        "opens and lookups without messages",
        ("test_read_ahead::test_what_was_read_ahead_is_counted_and_answers_without_python",),
    ),
    Feature(
        "reads: O_DIRECT, sendfile, mappings, programs",
        (
            "test_semantics::test_bytes_are_the_sources_at_odd_offsets[large]",
            "test_semantics::test_direct_io_and_sendfile_read_the_same",
            "test_semantics::test_a_file_can_be_mapped_privately_and_shared",
            "test_semantics::test_a_program_can_be_run_and_a_library_loaded",
        ),
    ),
    Feature(
        "large reads and chunks",
        (
            "test_chunked_reads::test_a_sequential_reader_makes_large_requests",
            "test_chunked_reads::test_readers_at_random_while_chunks_come_and_go",
        ),
    ),
    Feature(
        "large files, read from the source without Python",
        (
            "test_freshness::test_a_large_file_that_changes_under_its_reader_gives_an_error_not_a_mixture",
        ),
    ),
    Feature(
        "holes (SEEK_HOLE)",
        (
            "test_holes::test_holes_are_where_the_source_has_them[bypassed]",
            "test_holes::test_beyond_the_end_there_is_neither[5368709120-in chunks]",
            "test_holes::test_a_sparse_file_of_terabytes_is_copied_at_the_cost_of_its_data[cp]",
        ),
    ),
    Feature(
        "telling the kernel: clear, revalidation",
        (
            "test_freshness::test_what_was_looked_at_stays_as_it_was_until_clear",
            "test_freshness::test_with_revalidate_changes_show_by_themselves",
            "test_freshness::test_a_mapping_is_coherent_across_clear",
            "test_freshness::test_who_has_mapped_a_file_survives_clear_while_the_source_cannot_be_read",
            "test_freshness::test_a_file_held_open_keeps_its_version_also_after_a_clear",
        ),
    ),
    Feature(
        "telling the kernel beside a lookup that hangs",
        (
            "test_kernel_notifications::test_clear_tells_of_all_other_directories_before_it_waits_for_one_that_hangs",
        ),
    ),
    Feature(
        "interrupts and killed readers",
        (
            "test_source_errors::test_a_stuck_reader_can_be_killed_at_once",
            "test_chunked_reads::test_a_reader_that_waits_for_a_chunk_can_be_killed",
        ),
    ),
    Feature(
        "parallel lookups in one directory",
        ("test_source_errors::test_slow_lookups_in_one_directory_do_not_wait_for_each_other",),
    ),
    Feature(
        "ioctl",
        (
            "test_control::test_every_request_is_answered_on_files_and_on_directories",
            "test_semantics::test_a_foreign_ioctl_is_no_ioctl_of_this_file",
        ),
    ),
    Feature(
        "rights, and other users",
        (
            "test_semantics::test_the_kernel_checks_access_by_the_modes_that_are_shown",
            "test_semantics::test_without_allow_other_other_users_see_nothing",
        ),
    ),
    Feature(
        "writes refused, locks, extended attributes",
        (
            "test_semantics::test_every_write_is_refused_as_on_a_read_only_filesystem",
            "test_semantics::test_locks_are_granted_and_exclude_each_other",
            "test_semantics::test_extended_attributes_are_not_there",
        ),
    ),
    Feature(
        "paths below the source (openat2), swapped directories",
        (
            "test_swapped::test_a_user_who_swaps_his_directory_for_a_link_sees_nothing_private[inside-]",
            "test_swapped::test_an_open_directory_that_was_replaced_is_stale_and_the_next_open_is_right[replace_by_link]",
        ),
    ),
    Feature(
        "mounts inside the source, automounts",
        (
            "test_semantics::test_a_bind_mount_of_the_mount_made_later_is_refused_as_well",
            "test_automount::test_who_lists_and_looks_mounts_nothing",
        ),
    ),
    Feature(
        "a daemon that dies, and its successor",
        (
            "test_takeover::test_a_successor_answers_all_that_its_predecessor_had_in_hand[memory]",
            "test_takeover::test_what_was_open_goes_on[memory]",
        ),
    ),
    Feature(
        "a job of several nodes",
        ("test_chunks::test_mappings_libraries_and_programs",),
    ),
)


def arguments(features: tuple[Feature, ...] = FEATURES) -> list[str]:
    """The first test of each feature, then the second, and so on: a guest that its deadline ends
    has tested every feature a little."""
    in_turn = (each for row in zip_longest(*(one.tests for one in features)) for each in row)
    found = []
    for file, _, function in (each.partition("::") for each in in_turn if each):
        path = f"tests/mount/{file}.py"
        found.append(f"{path}::{function}" if function else path)
    return found


def feature_of(file: str, function: str) -> Feature | None:
    wanted = {file, f"{file}::{function}", f"{file}::{function.partition('[')[0]}"}
    return next((each for each in FEATURES if wanted & set(each.tests)), None)
