/* Filters: what the table and the two files of filters share. */
#ifndef CHAT_JINJA_FILTER_H
#define CHAT_JINJA_FILTER_H

#include "chat/jinja_str.h"

#define FILTER_TYPE(name) \
    struct val name(struct jx *x, struct val self, const struct val *a, const struct args *raw)
#define FILTER(name) static FILTER_TYPE(name)
#define UNUSED_ARGS (void)x, (void)self, (void)a, (void)raw

/* jinja_filter_text.c */
FILTER_TYPE(f_capitalize);
FILTER_TYPE(f_center);
FILTER_TYPE(f_escape);
FILTER_TYPE(f_filesizeformat);
FILTER_TYPE(f_forceescape);
FILTER_TYPE(f_format);
FILTER_TYPE(f_indent);
FILTER_TYPE(f_join);
FILTER_TYPE(f_lower);
FILTER_TYPE(f_pprint);
FILTER_TYPE(f_replace);
FILTER_TYPE(f_safe);
FILTER_TYPE(f_string);
FILTER_TYPE(f_striptags);
FILTER_TYPE(f_title);
FILTER_TYPE(f_trim);
FILTER_TYPE(f_truncate);
FILTER_TYPE(f_upper);
FILTER_TYPE(f_urlencode);
FILTER_TYPE(f_wordcount);
FILTER_TYPE(f_wordwrap);
FILTER_TYPE(f_xmlattr);

#endif
