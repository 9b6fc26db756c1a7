/* Unicode normalization form C as the reference tokenizers do it: by the tables of Unicode 9. Later marks
 * count as class 0 and later compositions stay apart. */
#ifndef TOKEN_NFC_H
#define TOKEN_NFC_H

#include "token/text.h"

/* Returns 0 if v is normalized as it stands (t untouched), 1 if the result is in t (check t->is_full), or
 * ERR_NOMEM. v is valid UTF-8. */
MUST_CHECK int nfc_normalize(struct text *t, const struct view *v);

#endif
