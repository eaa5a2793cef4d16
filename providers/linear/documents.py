"""The GraphQL that is sent to Linear, all of it: fixed texts, into which nothing is ever written. Values go as variables."""

from __future__ import annotations

_ISSUE = """
fragment IssueParts on Issue {
  id
  identifier
  previousIdentifiers
  description
  trashed
  archivedAt
  createdAt
  state { name type }
}
"""
_COMMENT = """
fragment CommentParts on Comment {
  id
  body
  createdAt
  issue { identifier previousIdentifiers }
}
"""

BEFORE_ISSUE = (
    """
query BeforeIssue($team: String!, $id: ID!) {
  teams(filter: { key: { eq: $team } }, first: 2) { nodes { id key } }
  issues(filter: { id: { eq: $id } }, includeArchived: true, first: 2) { nodes { ...IssueParts } }
}
"""
    + _ISSUE
)
"""The team's id, and whether our issue is there already."""

FIND_ISSUES = (
    """
query FindIssues($id: ID!, $mark: String!) {
  issues(
    filter: { or: [{ id: { eq: $id } }, { description: { contains: $mark } }] }
    includeArchived: true
    first: 20
  ) { nodes { ...IssueParts } }
}
"""
    + _ISSUE
)
"""By the id that we gave it, and by our mark: one that Linear has put under another id is found, too."""

READ_ISSUE = (
    """
query ReadIssue($issue: String!, $comment: ID!) {
  issue(id: $issue) {
    ...IssueParts
    team { states(filter: { type: { eq: "canceled" } }, first: 50) { nodes { id name type position } } }
  }
  comments(filter: { id: { eq: $comment } }, includeArchived: true, first: 2) { nodes { ...CommentParts } }
}
"""
    + _ISSUE
    + _COMMENT
)
"""One issue as it is now, by id or identifier; the states that would close it; and one comment, if it is there."""

FIND_COMMENTS = (
    """
query FindComments($id: ID!, $mark: String!) {
  comments(
    filter: { or: [{ id: { eq: $id } }, { body: { contains: $mark } }] }
    includeArchived: true
    first: 20
  ) { nodes { ...CommentParts } }
}
"""
    + _COMMENT
)

FIND_MANY_ISSUES = (
    """
query FindManyIssues($filter: IssueFilter!) {
  issues(filter: $filter, includeArchived: true, first: 200) { nodes { ...IssueParts } pageInfo { hasNextPage } }
}
"""
    + _ISSUE
)
"""The same for many calls: by ids and marks, which the filter holds."""

FIND_MANY_COMMENTS = (
    """
query FindManyComments($filter: CommentFilter!) {
  comments(filter: $filter, includeArchived: true, first: 200) { nodes { ...CommentParts } pageInfo { hasNextPage } }
}
"""
    + _COMMENT
)

CREATE_ISSUE = """
mutation CreateIssue($input: IssueCreateInput!) {
  issueCreate(input: $input) { success issue { id identifier } }
}
"""

CLOSE_ISSUE = """
mutation CloseIssue($issue: String!, $input: IssueUpdateInput!, $comment: CommentCreateInput!) {
  issueUpdate(id: $issue, input: $input) { success issue { id identifier state { name type } } }
  commentCreate(input: $comment) { success comment { id } }
}
"""
"""Linear runs the fields of a mutation one after the other: where there is a comment, the issue was moved before."""

CREATE_COMMENT = """
mutation CreateComment($input: CommentCreateInput!) {
  commentCreate(input: $input) { success comment { id } }
}
"""

DELETE_COMMENT = """
mutation DeleteComment($id: String!) {
  commentDelete(id: $id) { success entityId }
}
"""

READS = frozenset({BEFORE_ISSUE, FIND_ISSUES, READ_ISSUE, FIND_COMMENTS, FIND_MANY_ISSUES, FIND_MANY_COMMENTS})
"""What changes nothing."""
WRITES = {
    CREATE_ISSUE: "issueCreate",
    CLOSE_ISSUE: "issueUpdate",
    CREATE_COMMENT: "commentCreate",
    DELETE_COMMENT: "commentDelete",
}
"""Every other document, with the first field that it executes."""
